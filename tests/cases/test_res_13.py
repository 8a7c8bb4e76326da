"""What a reader asked for stays asked for: a reconnect repeats it, and what one may not read still moves the cursor.

The symptom: options of a stream were taken from each connect, and the client that came back did not say them again:
it silently got less than before. Here the options are `include` and `limit`, and which runs a socket follows.
"""

import asyncio
from typing import Any

import pytest

from tests.support.gateway import AGENT, Hand, RunningGateway, note, token
from tests.support.transports import TRANSPORTS, read, sse_blocks
from tests.support.waiting import wait_until
from towline.protocol import event_data as d
from towline.protocol.client.actions import Delta
from towline.protocol.client.connect import Client
from towline.protocol.codec import NewEntry
from towline.protocol.deltas import Piece, audience_of


async def say(gateway: RunningGateway, hand: Hand, message: str) -> None:
    """Publishes a word of an unfinished message, and stores it as the text so far, for who comes later."""
    piece = Piece(
        message=message, attempt=1, step="s1", kind="text", audience=audience_of("text"), offset=0, text="word"
    )
    await gateway.store.publish_pieces(hand.run, hand._claimed.fence, [piece], [piece])


def child(kind: Any, run: str) -> NewEntry:
    data = d.ChildStarted(step="s9", run=run) if kind == "child.started" else None
    return NewEntry(kind, AGENT, data or d.ChildFinished(step="s9", run=run, status="completed"))


def hidden(number: int) -> NewEntry:
    """What a viewer sees the place of, and nothing else."""
    data = d.MessageCompleted(message=f"m{number}", attempt=1, role="assistant", kind="text", text="x", partial=False)
    return NewEntry("message.completed", AGENT, data)


async def test_a_client_that_comes_back_asks_for_the_same(gateway: RunningGateway) -> None:
    """A run and two that it started, over one socket of one client, with unfinished text of the first only."""
    runs = [await gateway.start() for _ in range(3)]
    hands = [await gateway.hold(run) for run in runs]
    kinds: dict[str, list[str]] = {run: [] for run in runs}
    heard, words, lives, finished = list[tuple[str, str]](), list[tuple[str, str]](), list[str](), list[str]()

    def hear(delta: Delta) -> None:
        words.append((delta.run, str(delta.fields["message"])))

    async with Client(gateway.url, token()) as client:

        async def watch(run: str) -> None:
            more: dict[str, Any] = {"on_delta": hear} if run == runs[0] else {}
            async for event in client.events(run, "latest", on_live=lambda: lives.append(run), **more):
                kinds[run].append(event.type)
                if event.type == "message.completed":
                    finished.append(run)

        watching = [asyncio.create_task(watch(run)) for run in runs]
        for turn in range(3):
            await wait_until(lambda: sorted(lives) == sorted(runs), "all to be live")
            await hands[0].write(child("child.started", runs[1]), child("child.finished", runs[1]))
            for hand in hands:
                await say(gateway, hand, f"m{turn}")
            await wait_until(lambda: words, "unfinished text")
            for hand in hands:
                await hand.write(hidden(turn))
            await wait_until(lambda: len(finished) == 3, "all three runs to be heard")
            heard += words
            for news in (finished, lives, words):
                news.clear()
            client.drop_link()
        for hand in hands:
            await hand.complete()
        await asyncio.gather(*watching)
    assert kinds[runs[0]] == ["child.started", "child.finished", "message.completed"] * 3 + ["run.completed"]
    assert kinds[runs[1]] == kinds[runs[2]] == ["message.completed"] * 3 + ["run.completed"]
    assert heard == [(runs[0], f"m{turn}") for turn in range(3)], (
        "who asked for no text gets none, whatever others asked for"
    )


async def test_a_stream_is_resumed_at_its_address_with_what_that_asks_for(gateway: RunningGateway) -> None:
    """As a browser's EventSource does: the same address, and the last id in a header."""
    run = await gateway.start()
    hand = await gateway.hold(run)
    headers = {"Accept": "text/event-stream"}
    for turn in range(3):
        await say(gateway, hand, f"m{turn}")
        params = {"after": "0", "include": "delta", "limit": "3"}
        ops, heard = list[str](), ""
        async with gateway.http.stream("GET", f"/v1/runs/{run}/events", params=params, headers=headers) as response:
            async for block in sse_blocks(response):
                if "event" in block:
                    ops.append(block["event"])
                    heard = block.get("data", "")
                    headers["Last-Event-ID"] = block.get("id", headers.get("Last-Event-ID", "0"))
                if ops[-1:] == ["delta"] and f'"m{turn}"' in heard:
                    break
        assert ops.count("events") == (2 if turn == 0 else 1)
        await hand.write(hidden(turn))


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_what_one_may_not_read_moves_the_cursor_all_the_same(gateway: RunningGateway, transport: str) -> None:
    run = await gateway.start(grants={"user:vic": "viewer"})
    hand = await gateway.hold(run)
    await hand.write(note("seen"), *[hidden(n) for n in range(5)])
    first = await read(gateway, transport, run, "0", credential=token("vic"))
    assert first.seqs == list(range(1, 9))
    assert [event["data"] for event in first.events[3:]] == [None] * 5
    assert first.cursor == str((await gateway.store.heads([run]))[run])
    await hand.write(*[hidden(n) for n in range(5, 8)])
    for credential in (token("vic"), token("ana")):
        again = await read(gateway, transport, run, first.cursor, credential=credential)
        assert (again.recovery, again.seqs) == ("resumed", [9, 10, 11])


async def test_a_socket_refuses_what_cannot_be_included(gateway: RunningGateway) -> None:
    run = await gateway.start()
    async with gateway.socket() as wire:
        for include in (["subruns"], ["delta", "tool.*"], ["Delta"], [""], "delta"):
            await wire.send(op="subscribe", id="s", run=run, after="0", include=include)
            refused = (await wire.until("problem", id="s"))["problem"]
            assert refused["code"] == "bad_request"
            assert refused["field"].startswith("include")
        assert wire.events() == []
        await wire.send(op="watch", id="w", feed="runs", filter={"status": "asleep"})
        assert (await wire.until("problem", id="w"))["problem"]["field"] == "status"
        await wire.subscribe(run, after="0")
        await wire.until("live")


async def test_a_stream_refuses_what_cannot_be_included(gateway: RunningGateway) -> None:
    run = await gateway.start()
    headers = {"Accept": "text/event-stream"}
    for include in ("subruns", "delta,tool.*", "Delta", ""):
        query = {"after": "0", "include": include}
        answer = await gateway.http.get(f"/v1/runs/{run}/events", params=query, headers=headers)
        assert (answer.status_code, answer.json()["code"], answer.json()["field"]) == (400, "bad_request", "include")
    listed = await gateway.http.get("/v1/runs", params={"waiting_on": "approvals"})
    assert (listed.status_code, listed.json()["field"]) == (400, "waiting_on")
