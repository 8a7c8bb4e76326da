# Sourced by tests/run and deploy/demo: leaves a working $VENV/bin/python, made from uv.lock.
#
#   ensure_venv dev    with the development tools (tests/run)
#   ensure_venv run    what a user needs, and no more (deploy/demo)
#
# Needs a Python >= 3.11 and a shell; uv is taken from PATH, else installed into a private environment
# of its own (a Python that its distribution manages is never written to). Says nothing unless it has
# to install, and then one line; what the installer said is shown only when it failed.

TOWLINE_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
VENV="${UV_PROJECT_ENVIRONMENT:-$TOWLINE_ROOT/.venv}"

_bootstrap_fail() {
    printf 'towline: %s\n' "$*" >&2
    return 1
}

# Prints the path of a Python that is new enough; the plain name first, it is what the person chose.
_find_python() {
    local name path
    for name in python3 python python3.11 python3.12 python3.13 python3.14; do
        path="$(command -v "$name" 2>/dev/null)" || continue
        # Shims answer `command -v` for versions that are not installed: only running it tells.
        "$path" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || continue
        "$path" -c 'import sys; print(sys.executable)'
        return 0
    done
    _bootstrap_fail "needs Python 3.11 or newer, and found none; install python3.11 and try again"
}

# Installs uv into $TOWLINE_ROOT/.uv with what this Python has: ensurepip, or a pip of its own.
_install_uv() {
    local python="$1" home="$TOWLINE_ROOT/.uv"
    "$home/bin/uv" --version >/dev/null 2>&1 && return 0
    if ! "$python" -c 'import ensurepip' && ! "$python" -m pip --version &&
        [ "$(id -u)" = 0 ] && command -v apt-get; then
        # Debian's python3 comes without either.
        apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y python3-venv
    fi
    rm -rf "$home"
    "$python" -m venv "$home" && "$home/bin/python" -m pip install --quiet uv && return 0
    rm -rf "$home"
    "$python" -m venv --without-pip "$home" &&
        "$python" -m pip --python "$home/bin/python" install --quiet uv && return 0
    echo "$python could not install uv; install uv, or your system's package python3-venv, and try again"
    return 1
}

_sync() {
    local uv="$1" python="$2" kind="$3" group=(--no-dev --inexact)
    [ "$kind" = dev ] && group=()
    # --locked: a lock that no longer fits pyproject.toml is an error, not silently another environment.
    UV_PYTHON_DOWNLOADS=never UV_PROJECT_ENVIRONMENT="$VENV" "$uv" sync --quiet --locked --no-progress \
        --project "$TOWLINE_ROOT" --python "$python" ${group[@]+"${group[@]}"}
}

_make_venv() {
    local kind="$1" python="$2" uv
    if uv="$(command -v uv 2>/dev/null)" && "$uv" --version >/dev/null 2>&1; then
        _sync "$uv" "$python" "$kind" && return 0
        echo "$uv could not do it (see above); trying with one of our own"
    fi
    _install_uv "$python" && _sync "$TOWLINE_ROOT/.uv/bin/uv" "$python" "$kind"
}

ensure_venv() {
    local kind="${1:-run}" stamp="$VENV/.towline-stamp" want python log
    want="$(cat "$TOWLINE_ROOT/uv.lock" "$TOWLINE_ROOT/pyproject.toml" | cksum) $TOWLINE_ROOT"
    if "$VENV/bin/python" -B -c 'import towline.deploy' >/dev/null 2>&1; then
        case "$(cat "$stamp" 2>/dev/null)" in
            "dev $want" | "$kind $want") return 0 ;;
        esac
    fi
    python="$(_find_python)" || return 1
    echo "towline: installing into ${VENV#"$PWD"/} (first time, or the lock changed)" >&2
    log="$(mktemp "${TMPDIR:-/tmp}/towline-install.XXXXXX")" || return 1
    if ! _make_venv "$kind" "$python" >"$log" 2>&1; then
        cat "$log" >&2
        rm -f "$log"
        _bootstrap_fail "the installation failed; the lines above say where"
        return 1
    fi
    rm -f "$log"
    printf '%s %s\n' "$kind" "$want" >"$stamp"
}
