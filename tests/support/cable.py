"""A cable between a client and a gateway, in a thread of its own, that a test cuts, silences and mends.

Promises that what was cut ends on both sides at once, without a goodbye, and that a silent cable is a network that is
gone without a word: connections stay open on both sides, new ones are taken, and not a byte passes any of them, ever.
For tests that are not themselves in an event loop, such as those that drive a browser, and for others too.
"""

import asyncio
import contextlib
import re
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final

_CHUNK_BYTES: Final = 65_536
_RETRY: Final = re.compile(rb"retry: (\d+)\n")


class Cable:
    """One address that leads to `port`, which may be set later. Make it with `cable`.

    `change`: what it makes of each piece that a client sends, as a proxy would.
    `retry_ms`: how soon an EventSource is told to come back, whatever the gateway said, so that a test need not wait.
    """

    def __init__(self, port: int, retry_ms: int | None, change: Callable[[bytes], bytes]) -> None:
        self.url = ""
        self.port = port
        self.taken = 0
        """How many connections there have been."""
        self._retry_ms = retry_ms
        self._change = change
        self._silent = False
        self._open: set[asyncio.StreamWriter] = set()
        self._carried: set[asyncio.Event] = set()
        """One for each connection: set once it went silent."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cable", daemon=True)

    def cut(self) -> int:
        """Ends every connection, as a reset does; how many there were."""
        return int(self._call(self._cut()))

    def silence(self) -> None:
        """The network is gone, and tells nobody."""
        self._call(self._set_silent(True))

    def mend(self) -> None:
        """New connections are carried again. Those that went silent never speak again."""
        self._call(self._set_silent(False))

    def start(self) -> None:
        """Takes connections from now on."""
        self._thread.start()
        self._server = self._call(asyncio.start_server(self._carry, "127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def stop(self) -> None:
        """Cuts everything and ends the thread."""
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=20)

    async def _cut(self) -> int:
        count = len(self._open) // 2
        for writer in tuple(self._open):
            writer.transport.abort()
        return count

    async def _set_silent(self, silent: bool) -> None:
        self._silent = silent
        for carried in self._carried if silent else ():
            carried.set()

    async def _end(self) -> None:
        self._server.close()
        await self._cut()
        while rest := [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]:
            await asyncio.wait(rest)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.taken += 1
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.port)
        ends = {writer, far_writer}
        self._open |= ends
        was_silent = asyncio.Event()
        if self._silent:
            was_silent.set()
        self._carried.add(was_silent)
        try:
            await asyncio.gather(
                self._pass(reader, far_writer, was_silent, self._change),
                self._pass(far_reader, writer, was_silent, self._hurry),
            )
        finally:
            for end in ends:
                end.transport.abort()
            self._open -= ends
            self._carried.discard(was_silent)

    async def _pass(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        was_silent: asyncio.Event,
        change: Callable[[bytes], bytes],
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK_BYTES):
                if was_silent.is_set():
                    continue
                writer.write(change(data))
                await writer.drain()
        if not was_silent.is_set():
            writer.transport.abort()

    def _hurry(self, answer: bytes) -> bytes:
        """The same, as long as before, with another time to come back."""
        if (retry_ms := self._retry_ms) is None:
            return answer
        return _RETRY.sub(lambda found: b"retry: %0*d\n" % (len(found[1]), retry_ms), answer)


@contextlib.contextmanager
def cable(url: str = "", *, retry_ms: int | None = None, change: Callable[[bytes], bytes] = bytes) -> Iterator[Cable]:
    """A cable to the gateway at `url` until the block ends."""
    made = Cable(int(url.rpartition(":")[2] or 0), retry_ms, change)
    made.start()
    try:
        yield made
    finally:
        made.stop()
