"""`towline dev`: the stack in one terminal, until Ctrl-C.

Promises exactly one line on stdout when everything is ready, with `--json`; for people, the address of the page
and the token. What the processes write goes to stderr, each line with its process's name. Ctrl-C and SIGTERM end
everything in order and are no failure; a second one does not wait.
"""

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable, Iterator

import msgspec

from towline.deploy.local import Ready, Stack, StackOptions


async def run_dev(options: StackOptions, *, as_json: bool) -> int:
    """Runs until a signal comes. Returns the exit code; raises what `Stack.start` raises."""
    stack = Stack(options, say)
    with stop_signals(stack.kill_all) as stopped:
        starting = asyncio.create_task(stack.start())
        asked = asyncio.create_task(stopped.wait())
        try:
            await asyncio.wait((starting, asked), return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                _announce(starting.result(), as_json=as_json)
                await asked
                say("stopping; press Ctrl-C again to kill")
        finally:
            asked.cancel()
            # Cancelled half-way, it stops what it had started.
            starting.cancel()
            await asyncio.wait((starting,))
            await stack.stop()
    return 0


@contextlib.contextmanager
def stop_signals(again: Callable[[], None]) -> Iterator[asyncio.Event]:
    """An event that SIGINT, SIGTERM and SIGHUP set; `again` is called when another comes."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()

    def receive() -> None:
        if stopped.is_set():
            again()
        stopped.set()

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, receive)
    try:
        yield stopped
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def say(line: str) -> None:
    """One line on stderr. A terminal that is gone is no reason to end the stack in disorder."""
    with contextlib.suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)


def _announce(ready: Ready, *, as_json: bool) -> None:
    if as_json:
        print(msgspec.json.encode(ready).decode(), flush=True)
        return
    print(f"Towline is ready, its data is in {ready.data}")
    print(f"  page   {ready.page}")
    print(f"  token  {ready.token}")
    print("  stop   Ctrl-C", flush=True)
