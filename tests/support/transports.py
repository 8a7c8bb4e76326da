"""One question over every transport: what does a reader get who comes with this cursor?

Promises the same `Answer` from a socket, from server-sent events and from pages, so that a test states once what
must hold whatever a client speaks. Each reader keeps nothing but the cursor it was given last.
"""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, Final

import httpx
from msgspec import Struct

from tests.support.gateway import RunningGateway

TRANSPORTS: Final = ("socket", "sse", "pages")


class Answer(Struct):
    """What came, up to the head: `events` as sent, `cursor` the last one given, `problem` instead of all that."""

    recovery: str | None = None
    code: str | None = None
    lost: list[int] | None = None
    skipped: list[int] | None = None
    head: int | None = None
    first_seq: int | None = None
    events: list[dict[str, Any]] = []
    cursor: str | None = None
    projection: dict[str, Any] | None = None
    problem: dict[str, Any] | None = None
    ended: bool = False

    @property
    def seqs(self) -> list[int]:
        return [event["seq"] for event in self.events]


async def read(
    gateway: RunningGateway, transport: str, run: str, after: Any, *, limit: int | None = None, credential: str = ""
) -> Answer:
    """What a reader with the cursor `after` gets over `transport`, up to the present head."""
    answer = Answer()
    async with aclosing(follow(gateway, transport, run, after, limit=limit, credential=credential)) as frames:
        async for frame in frames:
            if _take(answer, frame):
                break
    return answer


def follow(
    gateway: RunningGateway, transport: str, run: str, after: Any, *, limit: int | None = None, credential: str = ""
) -> AsyncGenerator[dict[str, Any]]:
    """The frames of a reader who stays; to leave off (`aclosing`) cuts it. Pages are told as frames would be."""
    how = {"socket": _socket, "sse": _sse, "pages": _pages}[transport]
    return how(gateway, run, after, limit, credential)


def _take(answer: Answer, frame: dict[str, Any]) -> bool:
    """Takes a frame in; whether it was the last that is wanted."""
    match frame["op"]:
        case "subscribed":
            answer.recovery, answer.code = frame["recovery"], frame.get("recovery_code")
            answer.lost, answer.skipped = frame.get("lost"), frame.get("skipped")
            answer.cursor, answer.projection = frame["cursor"], frame["projection"]
            answer.head, answer.first_seq = frame["head"], frame["first_seq"]
        case "events":
            answer.events += frame["events"]
            answer.cursor = frame["cursor"]
            # Whoever is cut off here goes on behind the last event of this frame, be it live or replayed.
            assert not frame["events"] or frame["cursor"].startswith(f"{frame['events'][-1]['seq']}-"), frame
        case "live":
            answer.cursor = frame["cursor"]
            return not ((answer.projection or {}).get("outcome") or frame.get("closed"))
        case "end":
            answer.ended = True
            return True
        case "problem":
            answer.problem = frame["problem"]
            return True
        case _:
            pass
    return False


async def _socket(
    gateway: RunningGateway, run: str, after: Any, limit: int | None, credential: str
) -> AsyncGenerator[dict[str, Any]]:
    async with gateway.socket(credential or None) as wire:
        more = {} if limit is None else {"limit": limit}
        await wire.send(op="subscribe", id="s", run=run, after=after, **more)
        try:
            while True:
                yield await wire.next()
        finally:
            wire.connection.transport.abort()


async def _sse(
    gateway: RunningGateway, run: str, after: Any, limit: int | None, credential: str
) -> AsyncGenerator[dict[str, Any]]:
    query = {"after": str(after), **({} if limit is None else {"limit": str(limit)})}
    headers = {"Accept": "text/event-stream", **_bearer(credential)}
    async with gateway.http.stream("GET", f"/v1/runs/{run}/events", params=query, headers=headers) as response:
        if response.status_code != 200:
            yield {"op": "problem", "problem": json.loads(await response.aread())}
            return
        async for block in sse_blocks(response):
            if "data" in block:
                frame = json.loads(block["data"])
                assert block.get("id") == frame.get("cursor"), block
                yield frame


async def sse_blocks(response: httpx.Response) -> AsyncIterator[dict[str, str]]:
    """The blocks of an event stream as the specification reads them: lines end with CR, LF or both, nothing else."""
    rest = b""
    block: dict[str, str] = {}
    async for chunk in response.aiter_raw():
        rest = (rest + chunk).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = rest.split(b"\n")
        for line in lines:
            if not line:
                if block:
                    yield block
                block = {}
                continue
            name, _, value = line.decode().partition(":")
            if name:
                value = value.removeprefix(" ")
                block[name] = f"{block[name]}\n{value}" if name in block else value


async def _pages(
    gateway: RunningGateway, run: str, after: Any, limit: int | None, credential: str
) -> AsyncGenerator[dict[str, Any]]:
    cursor, wait_ms, was_told = after, 0, False
    while True:
        query = {"after": str(cursor), "wait_ms": str(wait_ms), **({} if limit is None else {"limit": str(limit)})}
        response = await gateway.http.get(f"/v1/runs/{run}/events", params=query, headers=_bearer(credential))
        page = response.json()
        if response.status_code != 200:
            yield {"op": "problem", "problem": page}
            return
        if not was_told:
            yield {**page, "op": "subscribed", "projection": None, "events": []}
        else:
            assert page["recovery"] == "resumed", page
        was_told, cursor = True, page["cursor"]
        yield {"op": "events", "events": page["events"], "cursor": cursor}
        if not wait_ms and (not page["events"] or page["events"][-1]["seq"] >= page["head"]):
            wait_ms = 10_000
            yield {"op": "live", "cursor": cursor, "closed": page["closed"]}
        if page["closed"]:
            yield {"op": "end", "cursor": cursor}
            return


def _bearer(credential: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {credential}"} if credential else {}
