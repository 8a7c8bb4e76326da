"""Long logs on a socket: stored frames, made once a class, are the same events that pages of the log hold."""

import asyncio

import pytest

from tests.support.gateway import RunningGateway, token
from tests.support.transports import read
from towline.protocol import event_data as d
from towline.protocol.codec import NewEntry
from towline.protocol.events import Actor
from towline.protocol.limits import STORE_PAGE_EVENTS as PAGE

pytestmark = pytest.mark.store


def said(n: int) -> NewEntry:
    data = d.MessageCompleted(message=f"m{n}", attempt=1, role="assistant", kind="text", text="x" * 40, partial=False)
    return NewEntry("message.completed", Actor("agent", "wf:toy"), data)


async def test_a_replay_in_frames_is_the_log_for_every_class_of_reader_from_anywhere(gateway: RunningGateway) -> None:
    run = await gateway.start()
    hand = await gateway.hold(run)
    for first in range(0, 2 * PAGE, 100):
        await hand.note(count=50)
        await hand.write(*[said(n) for n in range(first, first + 50)])
    last = 2 * PAGE + 4
    for subject, role in (("vic", "viewer"), ("col", "collaborator")):
        answer = await gateway.http.put(f"/v1/runs/{run}/grants/user:{subject}", json={"role": role})
        assert answer.status_code == 200, answer.text
    readers = {subject: token(subject) for subject in ("ana", "vic", "col")} | {"op": token("op", roles=["operator"])}
    at: dict[int, str] = {0: "0"}
    for seq in (1, 7, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE, last - 1):
        page = (await gateway.http.get(f"/v1/runs/{run}/events", params={"after": str(seq - 1), "limit": 1})).json()
        at[seq] = page["cursor"]
    for name, credential in readers.items():
        for cursor in at.values():
            expected = await read(gateway, "pages", run, cursor, credential=credential)
            found = await read(gateway, "socket", run, cursor, credential=credential)
            assert (found.recovery, found.code) == (expected.recovery, expected.code)
            assert (found.events, found.cursor) == (expected.events, expected.cursor), (name, cursor)
    framed = {reader for kept_run, _, reader in gateway.services.logs._pages if kept_run == run and reader}
    assert framed == {"viewer", "collaborator", "operator"}, "each class was served from frames of its own"
    async with gateway.socket(token("vic")) as wire:
        await wire.subscribe(run, after="0", include=["delta"])
        await wire.until("live")
        assert [event["seq"] for event in wire.events()] == list(range(1, last + 1))
        assert all(event["data"] is None for event in wire.events() if event["type"] == "message.completed")


async def test_who_replays_while_the_run_goes_on_and_ends_misses_nothing(gateway: RunningGateway) -> None:
    run = await gateway.start()
    hand = await gateway.hold(run)
    for _ in range(2 * PAGE // 100):
        await hand.note(count=100)

    async def follow() -> list[int]:
        async with gateway.socket() as wire:
            await wire.subscribe(run, after="0")
            end = await wire.until("end")
            assert end["status"] == "completed"
            return [event["seq"] for event in wire.events()]

    readers = [asyncio.create_task(follow()) for _ in range(5)]
    await hand.note(count=30)
    await hand.complete()
    readers += [asyncio.create_task(follow()) for _ in range(5)]
    answers = await asyncio.gather(*readers)
    assert all(seqs == list(range(1, len(seqs) + 1)) for seqs in answers)
    assert len({len(seqs) for seqs in answers}) == 1
