"""Text that activities stream, over a real store: what followers hear, what is kept, and what stands in the log."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from tests.support.waiting import wait_until
from tests.support.workers import Stage
from towline.protocol.client.texts import UnfinishedTexts
from towline.protocol.deltas import DeltaLane, ReadTexts
from towline.protocol.store.closing import force_close
from towline.protocol.store.keys import RunKeys
from towline.workers import Context, activity
from towline.workers.registry import Registry, Retry

pytestmark = pytest.mark.store

TEXT = "Grüße 👩‍👩‍👧‍👦 שלום e\u0301 \u2028 "


class Reader:
    """Follows one run as a gateway does, and shows what its client would show. `shown`: every state of the text."""

    def __init__(self) -> None:
        self.texts = UnfinishedTexts()
        self.shown: list[tuple[str, int, str]] = []
        self.completed: dict[str, Any] = {}


@asynccontextmanager
async def reading(workers: Stage, run: str) -> AsyncIterator[Reader]:
    reader, lane = Reader(), DeltaLane()
    notices = workers.store.notices()
    await notices.follow(run)
    loop = asyncio.get_running_loop()

    def now_ms() -> int:
        return int(loop.time() * 1000)

    async def act() -> None:
        while (action := lane.next_action(now_ms())) is not None:
            if isinstance(action, ReadTexts):
                lane.receive_texts(await workers.store.unfinished(run), now_ms())
                continue
            piece = action.piece
            known = reader.texts.receive_delta({name: getattr(piece, name) for name in piece.__struct_fields__})
            assert known is not None
            reader.shown.append((known.message, known.attempt, known.text))

    async def read() -> None:
        async for notice in notices:
            if notice is None:
                await act()
                continue
            lane.receive_pieces(notice.pieces, now_ms())
            await act()
            lane.receive_sent(notice.entries)
            for entry in notice.entries:
                event = entry.event()
                reader.texts.receive_event(event.type, event.data)
                if event.type == "message.completed":
                    assert event.data["message"] not in reader.completed
                    reader.completed[event.data["message"]] = event.data

    async def look() -> None:
        while True:
            await asyncio.sleep(0.2)
            await act()

    tasks = [asyncio.create_task(read()), asyncio.create_task(look())]
    try:
        yield reader
    finally:
        await notices.aclose()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_long_answer_is_heard_as_it_is_made_and_leaves_tens_of_entries(
    workers: Stage, registry: Registry
) -> None:
    go = asyncio.Event()

    async def answer() -> str:
        activity.delta(TEXT)
        await go.wait()
        for number in range(10_000):
            activity.delta(f"{TEXT}{number} ", kind="text")
            if number % 100 == 0:
                await asyncio.sleep(0.001)
        activity.delta("because", kind="reasoning")
        return "done"

    talk = registry.activity(answer, effect="read")

    @registry.workflow(name="talk")
    async def body(ctx: Context) -> str:
        return await ctx.run(talk)

    await workers.worker()
    run = await workers.start("talk")
    async with reading(workers, run) as reader:
        await wait_until(lambda: reader.shown, "the first text")
        go.set()
        assert await workers.result(run) == "done"
        await wait_until(lambda: len(reader.completed) == 2, "the finished messages")
    whole = TEXT + "".join(f"{TEXT}{number} " for number in range(10_000))
    texts = {data["kind"]: data for data in reader.completed.values()}
    assert texts["text"]["text"] is None  # far over the 32 KiB of an event: it went to a payload
    assert texts["reasoning"]["text"] == "because"
    states = [text for message, _, text in reader.shown if message == texts["text"]["message"]]
    assert len(states) > 3
    assert all(whole.startswith(state) for state in states)
    events = await workers.events(run)
    assert len(events) < 20
    (spilled,) = [event for event in events if event.type == "message.completed" and event.ref is not None]
    assert msgspec.json.decode(await workers.payloads.of(run).read(str(spilled.ref).removeprefix("pay_"))) == whole
    await wait_until(lambda: _is_empty(workers, run), "the kept texts to be forgotten")


async def _is_empty(workers: Stage, run: str) -> bool:
    return not await workers.store._client.exists(RunKeys.of(run).text)


async def test_a_worker_dies_while_it_talks_and_the_next_attempt_supersedes(workers: Stage, registry: Registry) -> None:
    talked = asyncio.Event()
    proceed = asyncio.Event()

    async def answer() -> int:
        for part in ("attempt", f" {activity.attempt}", " says", " 👋"):
            activity.delta(part)
        talked.set()
        if activity.attempt == 1:
            await asyncio.Event().wait()
        await proceed.wait()
        return activity.attempt

    talk = registry.activity(answer, effect="read", retry=Retry(attempts=5, first=timedelta(0)))

    @registry.workflow(name="talk")
    async def body(ctx: Context) -> int:
        return await ctx.run(talk)

    _, first = await workers.worker()
    run = await workers.start("talk")
    await talked.wait()

    async def kept() -> bool:
        return [text.text for text in await workers.store.unfinished(run)] == ["attempt 1 says 👋"]

    await wait_until(kept, "the text so far to be kept")
    first.cancel()
    await workers.worker()
    async with reading(workers, run) as reader:  # joins late: the first attempt's text is only in the store
        await wait_until(lambda: any(state[1:] == (2, "attempt 2 says 👋") for state in reader.shown), "attempt 2")
        proceed.set()
        assert await workers.result(run) == 2
        await wait_until(lambda: reader.completed, "the finished message")
    (data,) = reader.completed.values()
    assert (data["text"], data["attempt"], data["partial"]) == ("attempt 2 says 👋", 2, False)
    assert [attempt for _, attempt, _ in reader.shown] == sorted(attempt for _, attempt, _ in reader.shown)


async def test_a_run_that_no_worker_can_end_is_closed_with_what_there_is_of_its_text(
    workers: Stage, registry: Registry
) -> None:
    async def answer() -> None:
        activity.delta("half a sentence ")
        activity.delta('{"tool": ', kind="tool_arguments")
        await asyncio.Event().wait()

    talk = registry.activity(answer, effect="read")

    @registry.workflow(name="talk")
    async def body(ctx: Context) -> None:
        await ctx.run(talk)

    _, task = await workers.worker(lease_ms=60_000)
    run = await workers.start("talk")

    async def kept() -> bool:
        return len(await workers.store.unfinished(run)) == 2

    await wait_until(kept, "both texts to be kept")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await workers.send(run, "cancel", {"grace_ms": 0})
    assert await force_close(workers.store, run, holder="tests")
    events = await workers.events(run)
    assert [event.type for event in events][-2:] == ["message.completed", "run.cancelled"]
    assert (events[-2].data["text"], events[-2].data["partial"]) == ("half a sentence ", True)
    assert await workers.store.unfinished(run) == []


async def test_a_plain_function_streams_from_its_thread_and_a_failed_step_leaves_a_partial_text(
    workers: Stage, registry: Registry
) -> None:
    def answer() -> None:
        activity.delta("it ends he", message="last words")
        raise ValueError("no more")

    talk = registry.activity(answer, effect="read", retry=Retry(attempts=1))

    @registry.workflow(name="talk")
    async def body(ctx: Context) -> str:
        try:
            await ctx.run(talk)
        except Exception as error:
            return str(error)
        return ""

    await workers.worker()
    run = await workers.start("talk")
    assert "no more" in await workers.result(run)
    (data,) = [event.data for event in await workers.events(run) if event.type == "message.completed"]
    assert (data["message"], data["text"], data["partial"]) == ("last words", "it ends he", True)
