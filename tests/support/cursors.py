"""What a reader with a cursor is answered, over every way that a run's events can be asked for.

Promises one `Verdict` for all of them: the position that the reader is placed at, what it is told of it, and the seqs
that follow up to the head. Leaves what the answer must be to the table of the tests.
"""

import json
from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec
from msgspec import Struct

from tests.support.gateway import RunningGateway, token
from tests.support.transports import sse_blocks

WAYS: Final = ("socket", "sse", "sse-id", "page", "poll")
"""`sse-id`: the cursor comes as Last-Event-ID, as a browser brings it back. `poll`: a page that may wait."""


class Verdict(Struct, frozen=True, omit_defaults=True):
    """`code` of a problem, or what a reader is told; `cursor` is where it stands before the first event."""

    problem: str | None = None
    field: str | None = None
    recovery: str | None = None
    recovery_code: str | None = None
    lost: tuple[int, int] | None = None
    skipped: tuple[int, int] | None = None
    cursor: str | None = None
    seqs: tuple[int, ...] = ()
    head: int | None = None
    first_seq: int | None = None


async def verdict(
    gateway: RunningGateway, way: str, run: str, after: Any, *, limit: int | None = None, credential: str = ""
) -> Verdict:
    """The answer; `after` None is left out. A page has no limit of its own: there `limit` is not sent."""
    bearer = {"Authorization": f"Bearer {credential or token()}"}
    if way == "socket":
        async with gateway.socket(credential or None) as wire:
            more: dict[str, Any] = {} if after is None else {"after": after}
            await wire.send(op="subscribe", id="s", run=run, **more, **({} if limit is None else {"limit": limit}))
            return await _of_frames(_forever(wire))
    url, query = f"/v1/runs/{run}/events", {} if after is None else {"after": str(after)}
    if way in ("sse", "sse-id"):
        headers = {**bearer, "Accept": "text/event-stream"}
        if way == "sse-id" and after is not None:
            headers["Last-Event-ID"] = str(after)
            query = {"after": "0"}  # the header wins
        if limit is not None:
            query["limit"] = str(limit)
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        async with gateway.http.stream("GET", url, params=query, headers=raw) as response:
            if response.status_code != 200:
                return _refused(json.loads(await response.aread()))
            return await _of_frames(
                json.loads(block["data"]) async for block in sse_blocks(response) if "data" in block
            )
    if way == "poll":
        query["wait_ms"] = "1"
    answer = await gateway.http.get(url, params={**query, "limit": "1000"}, headers=bearer)
    page = answer.json()
    if answer.status_code != 200:
        return _refused(page)
    seqs = tuple(event["seq"] for event in page["events"])
    last: str = page["cursor"]
    assert int(last.partition("-")[0]) == (seqs[-1] if seqs else page["head"])
    return msgspec.convert({**page, "cursor": None if seqs else last, "seqs": seqs}, Verdict, strict=False)


async def _forever(wire: Any) -> AsyncIterator[dict[str, Any]]:
    while True:
        yield await wire.next()


async def _of_frames(frames: AsyncIterator[dict[str, Any]]) -> Verdict:
    told: dict[str, Any] = {}
    seqs: list[int] = []
    async for frame in frames:
        match frame["op"]:
            case "problem":
                return _refused(frame["problem"])
            case "subscribed":
                told = frame
                assert told["projection"]["last_seq"] == told["head"]
                assert told["projection"]["first_seq"] == told["first_seq"]
            case "events":
                assert frame["replay"]
                seqs += [event["seq"] for event in frame["events"]]
            case "live":
                assert int(frame["cursor"].partition("-")[0]) == told["head"]
                break
            case _:
                pass
    return msgspec.convert({**told, "seqs": tuple(seqs)}, Verdict, strict=False)


def _refused(problem: dict[str, Any]) -> Verdict:
    assert not problem.keys() & {"head", "first_seq", "cursor", "lost"}, problem
    return Verdict(problem=problem["code"], field=problem.get("field"))
