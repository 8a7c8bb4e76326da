"""Server-sent events: the socket's frames, one event each, resumed by the id that the browser brings back."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from tests.support.gateway import RunningGateway, running_gateway
from tests.support.server import StoreServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.store

ACCEPT = {"Accept": "text/event-stream"}


class Stream:
    """One open stream, event by event: (event, id, data) or (retry, ms)."""

    def __init__(self, answer: httpx.Response) -> None:
        self.answer = answer
        self._lines = answer.aiter_lines()
        self.comments = 0
        self.retry_ms: int | None = None

    async def next(self) -> tuple[str, str | None, dict[str, Any]] | None:
        """The next event, or None at the end of the stream."""
        name, cursor, data = "", None, ""
        async for line in self._lines:
            field, _, value = line.partition(": ")
            if line == "" and name:
                return name, cursor, msgspec.json.decode(data)
            if line.startswith(":"):
                self.comments += 1
            elif field == "event":
                name = value
            elif field == "id":
                cursor = value
            elif field == "data":
                data = value
            elif field == "retry":
                self.retry_ms = int(value)
        return None

    async def until(self, op: str) -> list[tuple[str, str | None, dict[str, Any]]]:
        """All events up to and with the first of this kind."""
        events = []
        async with asyncio.timeout(20):
            while (event := await self.next()) is not None:
                events.append(event)
                if event[0] == op:
                    return events
        raise AssertionError(f"the stream ended before {op}: {events}")


@asynccontextmanager
async def streaming(
    gateway: RunningGateway, run: str, headers: dict[str, str] | None = None, **params: Any
) -> AsyncIterator[Stream]:
    async with gateway.http.stream(
        "GET", f"/v1/runs/{run}/events", params=params, headers={**ACCEPT, **(headers or {})}
    ) as answer:
        yield Stream(answer)


async def test_a_run_is_streamed_from_its_beginning_to_its_end(gateway: RunningGateway) -> None:
    run = await gateway.start()
    hand = await gateway.hold(run)
    async with streaming(gateway, run, after="0") as stream:
        assert stream.answer.headers["content-type"].startswith("text/event-stream")
        before = await stream.until("live")
        assert [name for name, _, _ in before] == ["subscribed", "events", "events", "live"]
        assert all(len(data["events"]) == 1 for name, _, data in before if name == "events")
        assert all(cursor == data["cursor"] for _, cursor, data in before)
        await hand.note(count=3)
        await hand.complete()
        after = await stream.until("end")
        assert await stream.next() is None
    seqs = [data["events"][0]["seq"] for name, _, data in [*before, *after] if name == "events"]
    assert seqs == list(range(1, 7))
    last = after[-1][1]
    assert last is not None
    again = await gateway.http.get(f"/v1/runs/{run}/events", headers={**ACCEPT, "Last-Event-ID": last})
    assert (again.status_code, again.content) == (204, b"")
    await wait_until(lambda: gateway.services.hub.followed == 0, "nothing to be followed any more")


async def test_the_id_that_comes_back_wins_over_the_address(gateway: RunningGateway) -> None:
    run = await gateway.start()
    hand = await gateway.hold(run)
    await hand.note(count=4)
    async with streaming(gateway, run, after="0") as stream:
        third = (await stream.until("live"))[3][1]
    assert third is not None
    async with streaming(gateway, run, {"Last-Event-ID": third}, after="0") as stream:
        events = await stream.until("live")
        assert [data["events"][0]["seq"] for name, _, data in events if name == "events"] == [4, 5, 6]
    async with streaming(gateway, run) as stream:
        assert [name for name, _, _ in await stream.until("live")] == ["subscribed", "live"]
    async with streaming(gateway, run, after="0", limit=2) as stream:
        events = await stream.until("live")
        assert events[0][2]["skipped"] == [1, 4]
    await wait_until(lambda: gateway.services.hub.followed == 0, "the streams to be left")


@pytest.mark.parametrize(
    ("query", "field"),
    [("after=x", "after"), ("limit=0", "limit"), ("limit=10001", "limit"), ("include=all", "include")],
)
async def test_what_is_wrong_gets_its_status(gateway: RunningGateway, query: str, field: str) -> None:
    run = await gateway.start()
    answer = await gateway.http.get(f"/v1/runs/{run}/events?{query}", headers=ACCEPT)
    assert (answer.status_code, answer.json()["field"]) == (400, field)
    foreign = await gateway.http.get(f"/v1/runs/{run}/events?{query}", headers={**ACCEPT, **gateway.as_("bob")})
    assert foreign.status_code == 404
    anyone = await gateway.http.get(f"/v1/runs/{run}/events", headers={**ACCEPT, "Authorization": "Bearer x"})
    assert anyone.status_code == 401


async def test_a_credential_that_ends_ends_the_stream(gateway: RunningGateway) -> None:
    run = await gateway.start()
    async with streaming(gateway, run, gateway.as_("ana", ttl_s=1)) as stream:
        (*_, bye) = await stream.until("bye")
        assert (bye[1], bye[2]["code"]) == (None, 4005)
        assert await stream.next() is None


async def test_comments_keep_it_alive(gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("towline.gateway.sse.COMMENT_S", 0.01)
    run = await gateway.start()
    hand = await gateway.hold(run)
    async with streaming(gateway, run) as stream:
        await stream.until("live")
        reading = asyncio.create_task(stream.until("events"))
        await wait_until(lambda: stream.comments > 2, "comments")
        await hand.note()
        await reading


async def test_a_drain_and_a_store_that_is_away_let_it_come_back(tmp_path: Path) -> None:
    with StoreServer(tmp_path / "store") as server:
        async with running_gateway(server.url, tmp_path) as gateway:
            run = await gateway.start()
            async with streaming(gateway, run) as stream:
                await stream.until("live")
                await asyncio.to_thread(server.kill)
                async with streaming(gateway, run) as late:
                    assert late.answer.status_code == 200
                    assert [name for name, _, _ in await late.until("bye")] == ["bye"]
                    assert late.retry_ms == 1000
                await asyncio.to_thread(server.start)
                gateway.server.should_exit = True
                (*_, bye) = await stream.until("bye")
                assert bye[2]["code"] == 4000
                assert stream.retry_ms == bye[2]["retry_ms"]
