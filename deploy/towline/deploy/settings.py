"""What the commands need to know before they start: where the store is, which secret signs, which folder.

Promises one rule for all commands: an option wins over the environment, `--url` names the store and `--data`
the folder of everything else, and a `TOWLINE_` variable that nobody reads is refused, because a misspelt
setting that is silently ignored is worse than none. Secrets come from files or the environment, never from
the command line, which every process of the machine can read.
"""

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from towline.deploy.embedded import url_of
from towline.protocol.source_paths import ROOTS_VARIABLE
from towline.protocol.store.crash_points import VARIABLE as CRASH_VARIABLE
from towline.protocol.store.payloads import URL_VARIABLE
from towline.protocol.tokens import MIN_SECRET_BYTES, SECRET_VARIABLE

VARIABLES: Final[Mapping[str, str]] = {
    "TOWLINE_STORE_URL": "address of the store: redis://, rediss:// or unix://",
    SECRET_VARIABLE: "the HS256 secret that signs credentials, at least 32 bytes",
    "TOWLINE_DATA": "the data folder, when --data is not given",
    URL_VARIABLE: "where artifacts, uploads and large values lie instead of in the data folder: s3://, gs://, az://",
    "TOWLINE_URL": "address of the gateway that 'towline run' talks to",
    "TOWLINE_TOKEN": "the credential that 'towline run' shows",
    ROOTS_VARIABLE: "folders that runs may read, separated like PATH",
    "TOWLINE_WORK_DIR": "folder in which workers make their copies",
    CRASH_VARIABLE: "tests only: before:<script>:<n> or after:<script>:<n>",
    "TOWLINE_SUPERVISOR_FD": "set by 'towline dev' for its children",
}
"""Every variable that some part reads, beside those of `PREFIXES`."""

PREFIXES: Final = ("TOWLINE_GATEWAY_", "TOWLINE_WORKER_")
"""Variables that the gateway and the worker check for themselves."""


class SettingsError(Exception):
    """A setting is missing or wrong; the message says which, and what to do."""


def refuse_unknown(environment: Mapping[str, str] = os.environ) -> None:
    """Raises `SettingsError` for a `TOWLINE_` variable that nobody reads."""
    for name in environment:
        if name.startswith("TOWLINE_") and name not in VARIABLES and not name.startswith(PREFIXES):
            raise SettingsError(f"{name} is no setting of Towline: unset it, or see 'towline --help' for the names")


def store_url_of(data: Path | None, url: str | None, environment: Mapping[str, str] = os.environ) -> str:
    """`url`, else the embedded store of `data`, else TOWLINE_STORE_URL, else the store of TOWLINE_DATA.

    Raises `SettingsError` when nothing is named, `StoreFailed` when no store runs in the folder.
    """
    if url is None and data is None:
        url = environment.get("TOWLINE_STORE_URL") or None
    if url is not None:
        return _checked_url(url)
    folder = data or data_of(environment)
    if folder is None:
        raise SettingsError("no store is named: give --data DIR or --url URL, or set TOWLINE_STORE_URL")
    return url_of(folder)


def payloads_of(data: Path | None, environment: Mapping[str, str] = os.environ) -> Path | str:
    """Where large values and artifacts lie: TOWLINE_PAYLOADS_URL, else the folder in the data folder.

    Raises `SettingsError` when neither is named.
    """
    if url := environment.get(URL_VARIABLE):
        return url
    folder = data or data_of(environment)
    if folder is None:
        raise SettingsError(f"no folder for payloads is named: give --data DIR, or set TOWLINE_DATA or {URL_VARIABLE}")
    return folder.absolute() / "payloads"


def data_of(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The data folder that the environment names."""
    named = environment.get("TOWLINE_DATA")
    return Path(named) if named else None


def secret_of(data: Path | None, environment: Mapping[str, str] = os.environ) -> str:
    """The secret of the folder that an option named, else TOWLINE_JWT_SECRET, else that of TOWLINE_DATA.

    Raises `SettingsError` when there is none, or one that is too short to sign with.
    """
    given = environment.get(SECRET_VARIABLE)
    if data is None and given:
        return _long_enough(given, SECRET_VARIABLE)
    folder = data or data_of(environment)
    if folder is None:
        raise SettingsError("no secret is named: give --data DIR, or set TOWLINE_JWT_SECRET")
    path = folder / "secret"
    try:
        return _long_enough(path.read_text().strip(), str(path))
    except FileNotFoundError:
        # A gateway beside a store elsewhere keeps its payloads in --data and its secret in the environment.
        if given:
            return _long_enough(given, SECRET_VARIABLE)
        raise SettingsError(
            f"{folder} holds no secret yet: start 'towline dev --data {folder}' once, or set TOWLINE_JWT_SECRET"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} cannot be read: {error}") from None


def make_secret(data: Path) -> str:
    """The folder's secret, made on first use with mode 0600. The caller owns the folder."""
    path = data / "secret"
    if not path.exists():
        write_private(path, secrets.token_hex(32) + "\n")
    return secret_of(data)


def write_private(path: Path, text: str) -> None:
    """Writes a file that only its owner reads, whole or not at all."""
    made = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    # The mode stands before the first byte does.
    with open(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    made.replace(path)


def _checked_url(url: str) -> str:
    if not url.startswith(("redis://", "rediss://", "unix://")):
        raise SettingsError("the store's address must begin with redis://, rediss:// or unix://")
    return url


def _long_enough(secret: str, where: str) -> str:
    if len(secret.encode()) < MIN_SECRET_BYTES:
        raise SettingsError(f"the secret of {where} is shorter than {MIN_SECRET_BYTES} bytes: use a longer one")
    return secret
