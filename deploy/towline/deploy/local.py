"""The one-machine stack: an embedded store, a gateway and workers, each a real process.

Promises that `start` returns once the whole is usable (the gateway says it is ready, every worker has announced
itself) or raises a `StackError` that says what is missing; that whatever dies is started again, the store first;
and that after `stop` nothing runs and no socket is left. What a supervisor killed with SIGKILL left behind ends
by itself or by the next owner of the folder. Files in the data folder: `dev.json` (address and token, mode 0600,
there while the stack runs), `secret`, `payloads/`, `work/`, and the store's own.

Leaves restarts and their pace to `supervise`, the store to `embedded`. Read `Stack.start` first.
"""

import asyncio
import contextlib
import getpass
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TypeVar

import msgspec

from towline.deploy.embedded import EmbeddedStore, StoreFailed
from towline.deploy.loading import SHIPPED, absolute
from towline.deploy.local_http import get_json
from towline.deploy.settings import make_secret, write_private
from towline.deploy.supervise import Pace, Program, Supervisor
from towline.protocol.ids import is_subject
from towline.protocol.source_paths import ROOTS_VARIABLE
from towline.protocol.store.api import StoreError
from towline.protocol.tokens import mint

if TYPE_CHECKING:
    from towline.protocol.store.redis import RedisStore

T = TypeVar("T")

TOKEN_TTL_S: Final = 12 * 3_600.0
READY_TIMEOUT_S: Final = 60.0
DEFAULT_PORT: Final = 8787
_POLL_S: Final = 0.05
_STORE_POLL_S: Final = 0.2


class StackError(Exception):
    """The stack cannot be started as it was asked for; the message says why, and what to do."""


class StackOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to start. `port` 0 means a free one; `workflows` are modules or files beside the shipped ones."""

    data: Path
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    workers: int = 2
    workflows: Sequence[str] = ()
    allow_paths: Sequence[Path] = ()
    work: Path | None = None
    """Where workers make their copies; default `data/work`."""


class Ready(msgspec.Struct, frozen=True):
    """Where the stack answers. This is what `dev.json` holds and `towline dev --json` prints."""

    url: str
    token: str
    data: str

    @property
    def page(self) -> str:
        """The console, signed in: the fragment never reaches a server or its logs."""
        return f"{self.url}/#token={self.token}"


class Stack:
    """A stack in `options.data`. `start` it, `stop` it; or use it as a context manager.

    Args:
        say: takes one line for people: what became of a process, and what it wrote.
    """

    def __init__(self, options: StackOptions, say: Callable[[str], None]) -> None:
        self._options = options
        self._say = say
        self._store = EmbeddedStore(options.data)
        self._store_keeper: asyncio.Task[None] | None = None
        self._supervisor: Supervisor | None = None
        self._stopping = asyncio.Event()
        self._owns = False
        self.data = self._store.data

    async def start(self) -> Ready:
        """Starts everything and returns when it can be used.

        Raises `StackError`, `StoreLocked` when another stack owns the folder, `StoreFailed`, `SettingsError`,
        and `LoadError` for a file of workflows that is not there.
        """
        workflows = tuple(absolute(named) for named in self._options.workflows)
        try:
            await _in_thread(self._store.start)
            self._owns = True
            (self.data / "dev.json").unlink(missing_ok=True)  # of one that was killed
            return await self._start_rest(workflows)
        except BaseException:
            await self.stop()
            raise

    async def _start_rest(self, workflows: Sequence[str]) -> Ready:
        _keep_out_of_version_control(self.data)
        secret = make_secret(self.data)
        url = await self._address()
        ready = Ready(url, self.mint_token(secret), str(self.data))
        self._supervisor = supervisor = Supervisor(self._say)
        self._store_keeper = asyncio.create_task(self._keep_store(), name="keep the store")
        from towline.protocol.store.redis import RedisStore  # here: other commands need a name of this module alone

        store = await RedisStore.connect(self._store.url)
        try:
            since_ms = store.now_ms()
            for program in self._programs(url, workflows):
                supervisor.start(program)
            await self._until_ready(ready, store, since_ms)
        except StoreError as error:
            raise StackError(f"the store does not answer: {error}; its log is {self._store.log_path}") from error
        finally:
            await store.aclose()
        supervisor.settle()
        write_private(self.data / "dev.json", msgspec.json.encode(ready).decode() + "\n")
        return ready

    @staticmethod
    def mint_token(secret: str) -> str:
        """The development token: roles user and operator, 12 h, the name of the person at the keyboard."""
        return mint(secret.encode(), subject=_user_name(), roles=("user", "operator"), ttl_s=TOKEN_TTL_S)

    def kill_all(self) -> None:
        """For the impatient: ends gateway and workers at once. `stop` is still to be called."""
        if self._supervisor is not None:
            self._supervisor.signal_all(signal.SIGKILL)

    def pids(self) -> dict[str, int]:
        """The running processes: `store`, `gateway`, `worker-1` …"""
        pids = self._supervisor.pids() if self._supervisor else {}
        return {"store": self._store.pid, **pids} if self._store.pid and self._store.poll() is None else pids

    async def stop(self) -> None:
        """Ends everything, the store last. May be called twice."""
        if self._owns:
            with contextlib.suppress(OSError):
                (self.data / "dev.json").unlink(missing_ok=True)
        if self._supervisor is not None:
            await self._supervisor.stop()
        self._stopping.set()
        if self._store_keeper is not None:
            await self._store_keeper
        await _in_thread(self._store.stop)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _address(self) -> str:
        host = self._options.host
        port = await _usable_port(host, self._options.port)
        # Every address of the machine is none to call: a page there would have an origin that is not ours.
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def _programs(self, url: str, workflows: Sequence[str]) -> list[Program]:
        this = (sys.executable, "-m", "towline.deploy.cli")
        work = self._options.work or self.data / "work"
        work.mkdir(mode=0o700, parents=True, exist_ok=True)
        allowed = list(self._options.allow_paths) or [Path.cwd()]
        environment = {
            ROOTS_VARIABLE: os.pathsep.join(str(path.absolute()) for path in allowed),
            "TOWLINE_WORK_DIR": str(work),
        }
        data = ("--data", str(self.data))
        host, port = self._options.host, url.rpartition(":")[2]
        gateway = Program("gateway", (*this, "gateway", *data, "--host", host, "--port", port), environment)
        worker = (*this, "worker", SHIPPED, *workflows, *data)
        return [gateway, *(Program(f"worker-{n}", worker, environment) for n in range(1, self._options.workers + 1))]

    async def _until_ready(self, ready: Ready, store: "RedisStore", since_ms: int) -> None:
        assert self._supervisor is not None
        loop = asyncio.get_running_loop()
        until_s = loop.time() + READY_TIMEOUT_S
        missing = "the gateway"
        while missing:
            if self._supervisor.refused.done():
                raise StackError(str(self._supervisor.refused.result()))
            if loop.time() > until_s:
                raise StackError(
                    f"not ready after {READY_TIMEOUT_S:g} s: {missing} is missing; the lines above say why"
                )
            await asyncio.sleep(_POLL_S)
            missing = await self._missing(ready, store, since_ms)

    async def _missing(self, ready: Ready, store: "RedisStore", since_ms: int) -> str:
        """What is not there yet, in words; empty when all is."""
        if (await asyncio.to_thread(get_json, ready.url, "/readyz")).status != 200:
            return "the gateway"
        announced = {each.worker for each in await store.announced() if each.at_ms >= since_ms}
        left = self._options.workers - len(announced)
        return f"the announcement of {left} worker{'s' if left > 1 else ''}" if left > 0 else ""

    async def _keep_store(self) -> None:
        """Starts the store again when it died, for as long as the stack lives."""
        pace, began_s = Pace(), time.monotonic()
        while not self._stopping.is_set():
            await asyncio.sleep(_STORE_POLL_S)
            if self._stopping.is_set() or self._store.poll() is None:
                continue
            wait_s = pace.next_s(time.monotonic() - began_s)
            self._say(f"store died; it is started again in {wait_s:g} s")
            await asyncio.sleep(wait_s)
            began_s = time.monotonic()
            try:
                await _in_thread(self._store.ensure_running)
            except StoreFailed as error:
                self._say(f"store cannot be started: {error}")


async def _in_thread(work: Callable[[], T]) -> T:
    """Runs `work` in a thread to its end, also when the caller is cancelled: a thread cannot be stopped half-way."""
    running = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait((running,))
        raise


def _keep_out_of_version_control(data: Path) -> None:
    """The folder holds a secret, and lies in a person's project as likely as not."""
    with contextlib.suppress(FileExistsError), (data / ".gitignore").open("x") as file:
        file.write("*\n")


async def _usable_port(host: str, port: int) -> int:
    """`port`, or a free one for 0. What an earlier stack left is given a moment to go."""
    until_s = time.monotonic() + 5.0
    while True:
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((host, port))
                return int(probe.getsockname()[1])
        except socket.gaierror as error:
            raise StackError(f"no such address {host!r}: give one of this machine with --host") from error
        except OverflowError as error:
            raise StackError(f"{port} is no port: give 0 to 65535 with --port") from error
        except OSError as error:
            if time.monotonic() > until_s:
                raise StackError(
                    f"{host}:{port} cannot be used ({error.strerror}): choose another with --port, or 0"
                ) from error
        await asyncio.sleep(_POLL_S)


def _user_name() -> str:
    try:
        name = getpass.getuser()
    except (OSError, KeyError):  # a container may run under a number that has no name
        return "dev"
    return name if is_subject(name) else "dev"
