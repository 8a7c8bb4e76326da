"""Keeping processes alive: started, restarted with back-off when they die, ended together.

Promises that a program which dies runs again after a wait that grows with each quick death; that `stop` leaves
none of them running (SIGTERM, then SIGKILL after a bound); that Ctrl-C in the terminal reaches only the
supervisor, which ends the others in order; and that children of a supervisor which was itself killed end by
themselves: each holds the reading end of a pipe that only the supervisor keeps open (`end_with_supervisor`).

Leaves the embedded store to `embedded` and what to run to `local`. Read `Supervisor.start` first.
"""

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

FD_VARIABLE: Final = "TOWLINE_SUPERVISOR_FD"

REFUSED: Final = 2
"""The exit code of a program that could not start as it was called: repeating it is no remedy."""

STOP_TIMEOUT_S: Final = 15.0
"""Longer than a worker takes to hand its runs over, and a gateway to say goodbye."""

_LINE_BYTES: Final = 65_536
"""Longer lines are shown in pieces."""


class Pace:
    """How long to wait before the next start: 0.2 s, doubled with each quick death, at most 10 s."""

    FIRST_S: Final = 0.2
    LONGEST_S: Final = 10.0
    STEADY_S: Final = 30.0
    """Whoever lived this long has earned a fresh start."""

    def __init__(self) -> None:
        self._quick_deaths = 0

    def next_s(self, lived_s: float) -> float:
        """The wait after a life of `lived_s` seconds."""
        if lived_s >= self.STEADY_S:
            self._quick_deaths = 0
        wait_s = min(self.LONGEST_S, self.FIRST_S * 2.0 ** min(self._quick_deaths, 16))
        self._quick_deaths += 1
        return wait_s


class Program(msgspec.Struct, frozen=True):
    """What to run. `environment` is added to the supervisor's own."""

    name: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = {}


class Refused(Exception):
    """A program said (by exit code 2) that it cannot start as it was called. Its own words stand in the log."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} cannot start; its own line above says why")


class Supervisor:
    """The processes of one stack. Used on one event loop.

    Args:
        say: takes one line for people: what a child wrote, with its name in front, or what became of it.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._stopping = asyncio.Event()
        self._settled = False
        self._child_end, self._own_end = os.pipe()
        self.refused: asyncio.Future[Refused] = asyncio.get_running_loop().create_future()
        """Done when a program refused to start before `settle`; that one is not started again."""

    def pids(self) -> dict[str, int]:
        """The running programs, by name."""
        return {name: process.pid for name, process in self._processes.items() if process.returncode is None}

    def start(self, program: Program) -> None:
        """Starts `program` and keeps it running until `stop`."""
        self._keepers[program.name] = asyncio.create_task(self._keep(program), name=f"keep {program.name}")

    def settle(self) -> None:
        """The stack works: from now on a refusal is one more death, and what runs is not given up for it."""
        self._settled = True

    async def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Ends all programs: SIGTERM, and SIGKILL for those that still run after `timeout_s`. Idempotent."""
        self._stopping.set()
        self.signal_all(signal.SIGTERM)
        # Who is between two starts sees `_stopping`; who is just being started gets the signal in `_keep`.
        pending = set(self._keepers.values())
        if pending:
            _, pending = await asyncio.wait(pending, timeout=timeout_s)
        if pending:
            self._say(f"{', '.join(self.pids())} did not end within {timeout_s:g} s and is killed")
            self.signal_all(signal.SIGKILL)
            await asyncio.wait(pending)
        self._keepers.clear()
        for end in (self._child_end, self._own_end):
            with contextlib.suppress(OSError):
                os.close(end)

    def signal_all(self, number: signal.Signals) -> None:
        """Sends a signal to every running program."""
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    async def _keep(self, program: Program) -> None:
        pace = Pace()
        loop = asyncio.get_running_loop()
        while not self._stopping.is_set():
            began_s = loop.time()
            try:
                code = await self._live(program)
            except OSError as error:  # no memory or no process to be had, just now
                self._say(f"{program.name} cannot be started: {error.strerror}")
                code = 1
            if self._stopping.is_set():
                return
            if code == REFUSED and not self._settled:
                if not self.refused.done():
                    self.refused.set_result(Refused(program.name))
                return
            wait_s = pace.next_s(loop.time() - began_s)
            self._say(f"{program.name} {how_it_ended(code)}; it is started again in {wait_s:g} s")
            await self._pause(wait_s)

    async def _pause(self, wait_s: float) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), wait_s)

    async def _live(self, program: Program) -> int:
        """One life of a program, from its start to its exit code."""
        # A pipe of our own: asyncio would not call a process ended while a tool of its still holds the output.
        output, writer = os.pipe()
        try:
            # A session of its own: signals of the terminal do not reach it, and what it leaves can be found.
            process = await asyncio.create_subprocess_exec(
                *program.arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=writer,
                stderr=writer,
                env={**os.environ, **program.environment, FD_VARIABLE: str(self._child_end), "PYTHONUNBUFFERED": "1"},
                pass_fds=(self._child_end,),
                start_new_session=True,
            )
        except BaseException:
            os.close(output)
            raise
        finally:
            os.close(writer)
        self._processes[program.name] = process
        reader = asyncio.create_task(self._relay(program.name, output))
        if self._stopping.is_set():
            process.terminate()
        code = await process.wait()
        # Tools that a killed worker had started hold its output open, and must not outlive it.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        await asyncio.wait((reader,), timeout=1.0)
        reader.cancel()
        return code

    async def _relay(self, name: str, output: int) -> None:
        """Hands on what a program writes, line by line; a line of any length, and bytes that are no text."""
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(output, "rb", 0)
        )
        rest = b""
        try:
            while block := await reader.read(_LINE_BYTES):
                *lines, rest = (rest + block).split(b"\n")
                if len(rest) > _LINE_BYTES:
                    lines, rest = [*lines, rest], b""
                for line in lines:
                    self._say(f"{name:<8} | {line.decode(errors='replace')}")
        finally:
            transport.close()
        if rest:
            self._say(f"{name:<8} | {rest.decode(errors='replace')}")


def how_it_ended(code: int) -> str:
    """An exit code in words: `was killed (SIGKILL)`, `ended with exit code 1`."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed ({signal.Signals(-code).name})"
    except ValueError:
        return f"was killed (signal {-code})"


def end_with_supervisor(grace_s: float = STOP_TIMEOUT_S) -> None:
    """In a child: end this process when its supervisor is gone, as SIGTERM would, and for certain after `grace_s`.

    Does nothing in a process that no supervisor started.
    """
    named = os.environ.pop(FD_VARIABLE, "")
    if not named.isdigit():
        return
    fd = int(named)
    try:
        # Programs that this process starts are its own affair, not the supervisor's.
        os.set_inheritable(fd, False)
    except OSError:
        return  # the number was inherited, the pipe was not

    def wait_and_end() -> None:
        with contextlib.suppress(OSError):
            os.read(fd, 1)
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(grace_s)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait_and_end, name="end with supervisor", daemon=True).start()
