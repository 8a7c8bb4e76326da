"""The HTTP half of the client: one call, its retries, its problem.

Promises that a call is repeated while the server is away or overloaded, for at most `patience_s`, and that
every other refusal is a `ProblemError` at once. Safe because every call of ours may be repeated: reads, and
writes that carry their own id. Leaves which calls there are to `connect`.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlsplit

import httpx
import msgspec

from towline.protocol.client.backoff import Backoff
from towline.protocol.client.failures import Unreachable, problem_in
from towline.protocol.errors import ProblemError
from towline.protocol.limits import WAIT_MAX_MS

_TIMEOUT: Final = httpx.Timeout(10.0, read=WAIT_MAX_MS / 1000 + 15.0)
_TRY_LATER: Final = frozenset({"unavailable", "overloaded", "rate_limited"})
_CHUNK_BYTES: Final = 256 * 1024
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})


def is_loopback(url: str) -> bool:
    """Whether `url` is on this machine, where no proxy from the environment has any business."""
    return urlsplit(url).hostname in _LOOPBACK


async def _chunks(file: Path) -> AsyncIterator[bytes]:
    with await asyncio.to_thread(file.open, "rb") as opened:
        while chunk := await asyncio.to_thread(opened.read, _CHUNK_BYTES):
            yield chunk


class HttpFace:
    """Calls to one server with one credential. `token` may be replaced at any time."""

    def __init__(self, url: str, token: str, *, patience_s: float) -> None:
        self.url = url.rstrip("/")
        self.token = token
        self._patience_s = patience_s
        self._client = httpx.AsyncClient(
            base_url=self.url, timeout=_TIMEOUT, trust_env=not is_loopback(self.url), follow_redirects=False
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    async def call(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        query: Mapping[str, str | int] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """The decoded JSON answer. Raises `ProblemError` and `Unreachable`."""
        answer = await self.fetch(method, path, body=body, query=query, headers=headers)
        try:
            return msgspec.json.decode(answer)
        except msgspec.DecodeError:
            raise Unreachable(self.url, "what answers there is not Towline") from None

    async def fetch(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        query: Mapping[str, str | int] | None = None,
        headers: Mapping[str, str] | None = None,
        file: Path | None = None,
    ) -> bytes:
        """The bytes of the answer. `file` is streamed as the body. Raises as `call` does."""
        content = None if body is None else msgspec.json.encode(body)
        sent = {**(headers or {}), "Authorization": f"Bearer {self.token}"}
        if content is not None:
            sent["Content-Type"] = "application/json"
        backoff, give_up = Backoff(random.random), time.monotonic() + self._patience_s
        while True:
            failure: Exception
            retry_ms: int | None = None
            try:
                sending = content if file is None else _chunks(file)
                response = await self._client.request(method, path, content=sending, params=query, headers=sent)
                if response.is_success:
                    return response.content
                refusal = self._refusal(response)
                if refusal.problem.code not in _TRY_LATER:
                    raise refusal
                failure, retry_ms = refusal, refusal.problem.retry_after_ms
            except httpx.TransportError as error:
                failure = Unreachable(self.url, str(error) or type(error).__name__)
            except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
                raise Unreachable(self.url, f"not an address: {error}") from None
            pause_s = backoff.next_ms(retry_ms) / 1000
            if time.monotonic() + pause_s >= give_up:
                raise failure
            await asyncio.sleep(pause_s)

    async def send_file(self, path: str, file: Path, headers: Mapping[str, str]) -> Any:
        """The decoded answer to a POST of the file's bytes. Raises as `call` does, and `OSError` for the file."""
        answer = await self.fetch("POST", path, headers=headers, file=file)
        return msgspec.json.decode(answer)

    def _refusal(self, response: httpx.Response) -> ProblemError:
        try:
            body = msgspec.json.decode(response.content)
        except msgspec.DecodeError:
            body = None
        return problem_in(body, response.status_code)
