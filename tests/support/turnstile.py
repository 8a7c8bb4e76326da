"""Something between a client and a gateway that counts calls, and lets a test step in before or after any of them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx

Hook = Callable[["Passing"], Awaitable[None]]


@dataclass
class Passing:
    """One call: `answer` is None until the gateway answered."""

    number: int
    method: str
    path: str
    body: bytes
    headers: dict[str, str]
    answer: httpx.Response | None = None


@dataclass
class Turnstile:
    """See the module. `hook` is called before a call is passed on and again before it is answered."""

    gateway_url: str
    hook: Hook | None = None
    uncounted: tuple[str, ...] = ()
    """Ends of paths that have no number, such as those of a timer."""
    passed: list[Passing] = field(default_factory=list)
    url: str = ""
    open: set["asyncio.Task[None]"] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one connection."""
        task = asyncio.current_task()
        assert task is not None
        self.open.add(task)
        task.add_done_callback(self.open.discard)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            async with httpx.AsyncClient(base_url=self.gateway_url, timeout=40) as http:
                while await self._one(reader, writer, http):
                    pass
        writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, http: httpx.AsyncClient) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        is_counted = not (method == "POST" and path.endswith(self.uncounted)) if self.uncounted else True
        number = sum(passing.number > 0 for passing in self.passed) + 1 if is_counted else 0
        passing = Passing(number, method, path, body, headers)
        self.passed.append(passing)
        if self.hook is not None and number:
            await self.hook(passing)
        kept = ("authorization", "content-type", "towline-lease")
        passing.answer = answer = await http.request(
            method, path, content=body, headers={name: headers[name] for name in kept if name in headers}
        )
        if self.hook is not None and number:
            await self.hook(passing)
        kind = answer.headers.get("content-type", "application/json")
        length = f"Content-Length: {len(answer.content)}\r\n" if answer.status_code != 204 else ""
        writer.write(f"HTTP/1.1 {answer.status_code} -\r\nContent-Type: {kind}\r\n{length}\r\n".encode())
        writer.write(answer.content)
        await writer.drain()
        return True


@asynccontextmanager
async def turnstile(gateway_url: str, **settings: object) -> AsyncIterator[Turnstile]:
    """A turnstile on a free port, until the block ends."""
    made = Turnstile(gateway_url, **settings)  # type: ignore[arg-type]
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        server.close()
        for task in tuple(made.open):
            task.cancel()
        await asyncio.gather(*made.open, return_exceptions=True)
