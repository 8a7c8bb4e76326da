"""The embedded store: one real server, on a private unix socket, in a data folder that survives restarts.

Promises, for one data folder:
- one owner: a second process is refused with the pid of the first (`StoreLocked`);
- one server: what an owner killed with SIGKILL left running is stopped before another starts, because two
  servers on one append-only log destroy it;
- nothing acknowledged is lost: `appendonly yes`, `appendfsync always`, `noeviction`, and a memory limit;
- nobody else: no TCP port, the socket in a folder of mode 0700, stopped by process id alone.

Two locks carry this. The owner holds `owner.lock`. The server inherits `server.lock` and holds it as long
as it lives, whatever becomes of its owner; a pid alone could be stale or reused. Both are `flock` locks, so
the kernel drops them with their last holder. A child made by `fork` without `exec` would keep the owner's:
start children as programs.

Leaves restarts and their pace to the supervisor (`poll`, `ensure_running`), and judging a server that
somebody else runs to `protocol.store.durability`. Blocking throughout: call it from a thread, or before the
event loop starts. Read `EmbeddedStore.start` first.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec

from towline.deploy.data_folder import StoreFailed, StoreLocked, disown, own, runs_in, socket_path, try_lock
from towline.deploy.server_binary import NoServer, ServerBinary, find_server
from towline.protocol.store.probe import ServerUnreachable, probe, unix_url

__all__ = ["EmbeddedStore", "StoreFailed", "StoreLocked", "url_of"]

_POLL_S: Final = 0.01


def url_of(data: Path) -> str:
    """The address of the store that another process runs in `data`. Raises `StoreFailed` if none answers."""
    advice = f"no store runs in {data}: start one with 'towline dev --data {data}'"
    try:
        url = (data / "store" / "url").read_text().strip()
        probe(url)
    except (OSError, ServerUnreachable) as error:
        raise StoreFailed(advice) from error
    return url


class EmbeddedStore:
    """A server of our own in `data`. `start` it, use `url`, `stop` it; or use it as a context manager.

    Args:
        data: the data folder; made with mode 0700 if absent. The store keeps to `data/owner.lock` and
            `data/store/`, which is always 0700.
        maxmemory_bytes: where growth is refused; default 60 % of the machine's memory, at most 4 GiB.
        server: the program to run instead of the one `find_server` would choose.
        settings: settings to add to or change in the server's configuration. Meant for tests: with
            them the promises above may no longer hold.
        stop_timeout_s: how long the server may take to leave after SIGTERM before it gets SIGKILL.
    """

    def __init__(
        self,
        data: Path,
        *,
        maxmemory_bytes: int | None = None,
        server: Path | None = None,
        settings: Mapping[str, str] | None = None,
        stop_timeout_s: float = 10.0,
    ) -> None:
        self.data = data.absolute()
        self.folder = self.data / "store"
        self.log_path = self.folder / "store.log"
        self._maxmemory_bytes = maxmemory_bytes or _default_maxmemory_bytes()
        self._wanted_server = server
        self._settings = dict(settings or {})
        self._stop_timeout_s = stop_timeout_s
        self._owner_lock: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._socket_path = self.folder / "store.sock"
        self.server: ServerBinary | None = None

    @property
    def url(self) -> str:
        """`unix:///…`, for redis-py's `from_url`; the same after each restart."""
        return unix_url(str(self._socket_path))

    @property
    def pid(self) -> int | None:
        """The server's process id, or None before `start` and after `stop`."""
        return self._process.pid if self._process else None

    def start(self) -> Self:
        """Takes the folder, ends a server that a dead owner left, starts ours, and returns once it serves.

        Reading a long log may take a while; it is waited for as long as the server says that it loads.
        Raises `StoreLocked` when another process owns the folder, `StoreFailed` when no server starts.
        """
        if self._process is not None and self._process.poll() is None:
            return self
        was_ours = self._owner_lock is not None
        if self._owner_lock is None:
            self._owner_lock = own(self.data)
        try:
            self._socket_path = socket_path(self.folder)
            server_lock = self._only_server()
            try:
                self._spawn(server_lock)
            finally:
                # Ours goes; the server keeps its own copy for as long as it lives.
                os.close(server_lock)
            self._wait_until_serving()
            (self.folder / "url").write_text(self.url + "\n")
            (self.folder / "written-by").write_bytes(msgspec.json.encode(self.server))
        except BaseException:
            # A restart that fails (disk full, say) will be tried again: the folder and the address stay ours.
            if was_ours:
                self._end_server()
            else:
                self.stop()
            raise
        return self

    def poll(self) -> int | None:
        """None while the server runs; else how it ended (exit code, or minus the signal); 0 if never started."""
        return self._process.poll() if self._process else 0

    def ensure_running(self) -> bool:
        """Starts the server again if it has died; True if it had. The folder stays ours in between."""
        if self._process is not None and self._process.poll() is None:
            return False
        self.start()
        return True

    def stop(self) -> None:
        """Ends the server (SIGTERM, then SIGKILL) and gives the folder back. May be called twice."""
        self._end_server()
        if self._owner_lock is None:
            return
        (self.folder / "url").unlink(missing_ok=True)
        if self._socket_path.parent != self.folder:
            self._socket_path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                self._socket_path.parent.rmdir()
        lock, self._owner_lock = self._owner_lock, None
        disown(lock)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _end_server(self) -> None:
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        deadline = time.monotonic() + self._stop_timeout_s
        while time.monotonic() < deadline:
            # More than once: a server refuses to leave while it writes a first log, and forgets the signal.
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(min(0.5, self._stop_timeout_s))
                return
        process.kill()
        process.wait()

    def _only_server(self) -> int:
        """Locks `server.lock` once no server of this folder lives, ending one if need be."""
        lock = os.open(self.folder / "server.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + self._stop_timeout_s
        last_chance = deadline + self._stop_timeout_s
        asked = set[int]()
        while not try_lock(lock):
            now = time.monotonic()
            # None while it starts and has not said who it is, or when only its log rewriter is left.
            pid = self._left_over_pid()
            if pid is not None and (pid not in asked or now > deadline):
                asked.add(pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL if now > deadline else signal.SIGTERM)
            if now > last_chance:
                os.close(lock)
                raise StoreFailed(
                    f"a server of an earlier owner still holds {self.folder} and cannot be ended: "
                    f"end it by hand, its process id is in {self.folder / 'server.pid'}"
                )
            time.sleep(_POLL_S)
        return lock

    def _left_over_pid(self) -> int | None:
        """The process id of a server that runs in our folder, and of nothing else."""
        with contextlib.suppress(ServerUnreachable):
            facts = probe(self.url, timeout_s=0.5)
            if Path(facts.config_file) == self._config_path:
                return facts.process_id
        # It may be stopped, or too busy to answer. The pid file may be stale, so the process is looked at.
        try:
            pid = int((self.folder / "server.pid").read_text())
        except (OSError, ValueError):
            return None
        return pid if runs_in(pid, self.folder) else None

    @property
    def _config_path(self) -> Path:
        return self.folder / "store.conf"

    def _spawn(self, server_lock: int) -> None:
        try:
            self.server = find_server(self._wanted_server, last=self._written_by())
        except NoServer as error:
            raise StoreFailed(str(error)) from error
        self._socket_path.unlink(missing_ok=True)
        lines = [f"{name} {_quoted(value)}" for name, value in self._configuration().items()]
        self._config_path.write_bytes(b"\n".join(os.fsencode(line) for line in lines) + b"\n")
        with self.log_path.open("ab") as log:
            # A session of its own: Ctrl-C in the terminal must reach the owner, which stops us last.
            self._process = subprocess.Popen(
                [self.server.path, self._config_path],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                pass_fds=(server_lock,),
                start_new_session=True,
            )

    def _written_by(self) -> ServerBinary | None:
        """The server that last served this folder."""
        try:
            return msgspec.json.decode((self.folder / "written-by").read_bytes(), type=ServerBinary)
        except (OSError, msgspec.DecodeError):
            return None

    def _configuration(self) -> dict[str, str]:
        return {
            "port": "0",
            "unixsocket": str(self._socket_path),
            "unixsocketperm": "700",
            "daemonize": "no",
            "dir": str(self.folder),
            "pidfile": str(self.folder / "server.pid"),
            "logfile": str(self.log_path),
            "save": "",
            "appendonly": "yes",
            "appendfsync": "always",
            "no-appendfsync-on-rewrite": "no",
            "aof-load-truncated": "yes",
            "maxmemory": str(self._maxmemory_bytes),
            "maxmemory-policy": "noeviction",
            **self._settings,
        }

    def _wait_until_serving(self) -> None:
        silent_until = time.monotonic() + 15.0
        while True:
            assert self._process is not None
            code = self._process.poll()
            if code is not None:
                raise StoreFailed(f"the store's server ended at once (exit code {code}): {self._why()}")
            try:
                facts = probe(self.url)
            except ServerUnreachable as error:
                if time.monotonic() > silent_until:
                    raise StoreFailed(f"the store's server does not answer; see {self.log_path}") from error
            else:
                # Another's answer can only come from a socket that somebody put into our private folder.
                if facts.process_id == self._process.pid and not facts.is_loading:
                    return
                silent_until = time.monotonic() + 15.0
            time.sleep(_POLL_S)

    def _why(self) -> str:
        last, now = self._written_by(), self.server
        if last is not None and now is not None and not now.reads_what_was_written_by(last):
            # Its own words would advise to repair the log, which would destroy it.
            return f"{now} cannot read what {last} wrote; put that server back on PATH"
        lines = self.log_path.read_text(errors="replace").splitlines()
        words = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
        return f"{words} (all of it is in {self.log_path})"


def _quoted(value: str) -> str:
    """A value as the server's configuration reads it; paths may hold spaces, quotes and line ends."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'


def _default_maxmemory_bytes() -> int:
    """60 % of the machine's memory, which leaves room for a rewrite of the log; at most 4 GiB."""
    machine_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):  # "max" when the container has no limit
        machine_bytes = min(machine_bytes, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return min(machine_bytes * 6 // 10, 4 * 1024**3)
