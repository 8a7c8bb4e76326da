"""Unfinished text through the gateway: who gets it, from where, until when; over sockets and streams alike."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from tests.support.gateway import AGENT, Hand, RunningGateway, Wire, token
from tests.support.http_worker import DONE, data_of, http_worker, offer_essay, start_essay
from tests.support.waiting import wait_until
from towline.gateway import prepared
from towline.gateway.prepared import text_frame
from towline.protocol import event_data as d
from towline.protocol.client.connect import Client
from towline.protocol.client.texts import UnfinishedTexts
from towline.protocol.codec import NewEntry
from towline.protocol.deltas import Piece, audience_of, entry_of_message
from towline.protocol.store import api
from towline.protocol.store.keys import RunKeys

pytestmark = pytest.mark.store


class Talker:
    """Holds a run and publishes as a worker would."""

    def __init__(self, gateway: RunningGateway, hand: Hand, claimed: api.Claimed) -> None:
        self.hand = hand
        self.run = claimed.run
        self._gateway = gateway
        self._fence = claimed.fence

    async def say(self, offset: int, text: str, *, keep: str | None = None, **members: Any) -> None:
        """Publishes a piece; `keep`: and stores this as the text so far."""
        kind = members.get("kind", "text")
        piece = Piece(
            **{"message": "m1", "attempt": 1, "step": "s1", "audience": audience_of(kind), **members},
            offset=offset,
            text=text,
        )
        kept = [] if keep is None else [msgspec.structs.replace(piece, offset=0, text=keep)]
        await self._gateway.store.publish_pieces(self.run, self._fence, [piece] if text else [], kept)

    async def complete(self, text: str, **members: Any) -> None:
        """The finished message stands in the log."""
        given: dict[str, Any] = {"message": "m1", "kind": "text", **members}
        data = d.MessageCompleted(attempt=1, role="assistant", text=text, partial=False, step="s1", **given)
        await self.hand.write(entry_of_message(data, AGENT))

    async def is_followed(self) -> bool:
        raw: Any = self._gateway.store._client
        count = await raw.execute_command("PUBSUB", "SHARDNUMSUB", RunKeys.of(self.run).channel)
        return bool(count[1])


async def talker(gateway: RunningGateway) -> Talker:
    run = await gateway.start()
    hand = await gateway.hold(run)
    return Talker(gateway, hand, hand._claimed)


@asynccontextmanager
async def listening(
    gateway: RunningGateway, talk: Talker, credential: str | None = None, **members: Any
) -> AsyncIterator[Wire]:
    """A socket that is live on the run and wants deltas."""
    async with gateway.socket(credential) as wire:
        await wire.subscribe(talk.run, **{"include": ["delta"], **members})
        await wire.until("live")
        await wait_until(talk.is_followed, "the run to be followed")
        yield wire


def deltas(wire: Wire) -> list[dict[str, Any]]:
    return [frame for frame in wire.frames if frame["op"] == "delta"]


async def test_pieces_arrive_as_frames_of_the_contract(gateway: RunningGateway) -> None:
    talk = await talker(gateway)
    async with listening(gateway, talk) as wire:
        await talk.say(0, "Reading ")
        first = await wire.until("delta")
        assert first == {
            "op": "delta", "run": talk.run, "message": "m1", "attempt": 1, "offset": 0, "text": "Reading ",
            "role": "assistant", "kind": "text", "step": "s1",
        }  # fmt: skip
        await talk.say(8, "👩‍👩‍👧‍👦 שלום")
        second = await wire.until("delta")
        assert second == {
            "op": "delta", "run": talk.run, "message": "m1", "attempt": 1, "offset": 8, "text": "👩‍👩‍👧‍👦 שלום",
        }  # fmt: skip


async def test_what_follows_is_framed_once_for_all_who_keep_up(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    framed: list[bytes] = []

    def frame(payload: bytes) -> bytes:
        framed.append(payload)
        return text_frame(payload)

    monkeypatch.setattr(prepared, "text_frame", frame)
    talk = await talker(gateway)
    async with listening(gateway, talk) as one, listening(gateway, talk) as two:
        await talk.say(0, "a")
        assert [(await wire.until("delta"))["text"] for wire in (one, two)] == ["a", "a"]
        for offset, text in enumerate("bcd", 1):
            await talk.say(offset, text)
        for wire in (one, two):
            texts = UnfinishedTexts()
            texts.receive_delta(deltas(wire)[0])
            while (known := texts.texts["m1"]).text != "abcd":
                texts.receive_delta(await wire.until("delta"))
            assert known.offset == 0
    assert 1 <= len([payload for payload in framed if b'"op":"delta"' in payload]) <= 3


async def test_who_did_not_ask_gets_no_delta(gateway: RunningGateway) -> None:
    talk = await talker(gateway)
    async with gateway.socket() as wire:
        await wire.subscribe(talk.run)
        await wire.until("live")
        await talk.say(0, "secret", keep="secret")
        await talk.complete("done")
        await wire.until("events")
        await talk.hand.complete()
        await wire.until("end")
        assert deltas(wire) == []


async def test_a_late_joiner_begins_with_the_text_so_far(gateway: RunningGateway) -> None:
    talk = await talker(gateway)
    await talk.say(0, "Hello ", keep="Hello ")
    async with listening(gateway, talk) as wire:
        assert (await wire.until("delta"))["text"] == "Hello "
        await talk.say(6, "you")
        frame = await wire.until("delta")
        assert (frame["offset"], frame["text"]) == (6, "you")
    assert [frame["op"] for frame in wire.frames if frame["op"] in ("live", "delta")] == ["live", "delta", "delta"]


async def test_a_text_whose_beginning_is_gone_says_so(gateway: RunningGateway) -> None:
    talk = await talker(gateway)
    piece = Piece("m1", 1, 5000, "the end", step="s1")
    await gateway.store.publish_pieces(talk.run, talk._fence, [], [piece])
    async with listening(gateway, talk) as wire:
        frame = await wire.until("delta")
        assert (frame["offset"], frame["text"], frame["truncated"], frame["role"]) == (
            5000, "the end", True, "assistant",
        )  # fmt: skip


async def test_a_hole_is_filled_from_the_next_stored_text(gateway: RunningGateway) -> None:
    talk = await talker(gateway)
    async with listening(gateway, talk) as wire:
        await talk.say(0, "a")
        await talk.say(2, "c")
        await talk.say(0, "", keep="ab")
        texts = UnfinishedTexts()
        while not (shown := texts.texts.get("m1")) or shown.text != "abc":
            texts.receive_delta(await wire.until("delta"))
        ends = [(frame["offset"], frame["offset"] + len(frame["text"])) for frame in deltas(wire)]
        assert all(end == begin for (_, end), (begin, _) in itertools.pairwise(ends))


async def test_nothing_follows_the_finished_message_although_its_text_is_still_kept(gateway: RunningGateway) -> None:
    talk = await talker(gateway)
    async with listening(gateway, talk) as wire:
        await talk.say(0, "Hel", keep="Hel")
        await wire.until("delta")
        await talk.complete("Hello")
        await wire.until("events")
        await talk.say(3, "too late", keep="Heltoo late")
        await talk.say(0, "other", message="m2")
        assert (await wire.until("delta"))["message"] == "m2"


async def test_a_message_finished_before_a_subscription_is_not_shown_to_it(gateway: RunningGateway) -> None:
    talk = await talker(gateway)
    await talk.say(0, "Hel", keep="Hel")
    await talk.complete("Hello")
    async with listening(gateway, talk) as wire:
        await talk.say(0, "other", message="m2")
        assert (await wire.until("delta"))["message"] == "m2"
        assert {frame["message"] for frame in deltas(wire)} == {"m2"}


async def test_reasoning_is_for_operators_and_nothing_for_who_may_not_read_the_message(
    gateway: RunningGateway,
) -> None:
    talk = await talker(gateway)
    answer = await gateway.http.put(f"/v1/runs/{talk.run}/grants/user:vi", json={"role": "viewer"})
    assert answer.status_code < 300, answer.text
    operator = token("op", roles=("user", "operator"))
    async with (
        listening(gateway, talk) as owner,
        listening(gateway, talk, operator) as op,
        listening(gateway, talk, token("vi")) as viewer,
    ):
        await talk.say(0, "CANARY", kind="reasoning", message="r1", keep="CANARY")
        await talk.say(0, "for the team", keep="for the team")
        assert {(await op.until("delta"))["text"] for _ in range(2)} == {"CANARY", "for the team"}
        assert (await owner.until("delta"))["text"] == "for the team"
        await talk.complete("CANARY", message="r1", kind="reasoning")
        await viewer.until("events")
        await owner.until("events")
        assert deltas(viewer) == []
        assert [frame["message"] for frame in deltas(owner)] == ["m1"]
        assert "CANARY" not in msgspec.json.encode([owner.frames, viewer.frames]).decode()
    async with listening(gateway, talk, token("vi")) as late:
        await talk.hand.note()
        await late.until("events")
        assert deltas(late) == []


async def test_a_larger_attempt_replaces(gateway: RunningGateway) -> None:
    talk = await talker(gateway)
    async with listening(gateway, talk) as wire:
        await talk.say(0, "first")
        await wire.until("delta")
        await talk.say(0, "second", attempt=2)
        frame = await wire.until("delta")
        assert (frame["attempt"], frame["offset"], frame["role"]) == (2, 0, "assistant")


async def test_text_that_is_shed_comes_back_from_the_store(gateway: RunningGateway) -> None:
    talk = await talker(gateway)
    async with listening(gateway, talk) as wire:
        gateway.services.sheds_text = lambda: True
        await talk.say(0, "dropped ", keep="dropped ")
        await talk.hand.note()
        await wire.until("events")
        assert deltas(wire) == []
        gateway.services.sheds_text = lambda: False
        await talk.say(8, "and found", keep="dropped and found")
        texts = UnfinishedTexts()
        while not (shown := texts.texts.get("m1")) or shown.text != "dropped and found":
            texts.receive_delta(await wire.until("delta"))


async def test_a_socket_that_does_not_read_gets_its_text_merged(gateway: RunningGateway) -> None:
    talk = await talker(gateway)
    async with listening(gateway, talk) as wire:
        wire.connection.transport.pause_reading()
        whole = ""
        for number in range(300):
            text = f"{number:04} " + "é" * 2000
            await talk.say(len(whole), text)
            whole += text
        tail = whole[-8000:]
        piece = Piece("m1", 1, len(whole) - len(tail), tail, step="s1")
        await gateway.store.publish_pieces(talk.run, talk._fence, [], [piece])
        wire.connection.transport.resume_reading()
        texts = UnfinishedTexts()
        while not (shown := texts.texts.get("m1")) or shown.offset + len(shown.text) < len(whole):
            texts.receive_delta(await wire.until("delta"))
        assert shown.text == whole[shown.offset :]
        assert len(deltas(wire)) < 300


async def test_the_stream_of_events_carries_the_same_deltas_without_an_id(gateway: RunningGateway) -> None:
    talk = await talker(gateway)
    await talk.say(0, "Hello\r\n\u2028", keep="Hello\r\n\u2028")
    lines: list[str] = []
    url = f"/v1/runs/{talk.run}/events?include=delta"
    async with gateway.http.stream("GET", url, headers={"Accept": "text/event-stream"}) as answer:
        async with asyncio.timeout(20):
            async for chunk in answer.aiter_raw():
                lines += chunk.decode().split("\n\n")
                if any("event: delta" in line for line in lines):
                    break
    (record,) = [line for line in lines if "event: delta" in line]
    head, _, data = record.partition("data: ")
    assert head == "event: delta\n"
    assert "\n" not in data
    frame = msgspec.json.decode(data)
    assert (frame["op"], frame["text"], frame["kind"]) == ("delta", "Hello\r\n\u2028", "text")


async def test_a_client_shows_text_that_grows_until_its_event_comes(gateway: RunningGateway) -> None:
    talk = await talker(gateway)
    texts = UnfinishedTexts()
    states: list[str] = []

    async with Client(gateway.url, token()) as client:

        def show(delta: Any) -> None:
            known = texts.receive_delta(delta.fields)
            assert known is not None
            states.append(known.text)

        async def read() -> str:
            async for event in client.events(talk.run, on_delta=show):
                texts.receive_event(event.type, event.data)
                if event.type == "message.completed":
                    return str(event.data["text"])
            return ""

        task = asyncio.create_task(read())
        await wait_until(talk.is_followed, "the run to be followed")
        await talk.say(0, "Hel", keep="Hel")
        await wait_until(lambda: states, "the first text")
        await talk.say(3, "lo 👋")
        await wait_until(lambda: states[-1:] == ["Hello 👋"], "the whole text")
        await talk.complete("Hello 👋")
        assert await task == states[-1]
        assert texts.texts == {}


async def test_the_end_of_a_run_ends_its_texts(gateway: RunningGateway) -> None:
    talk = await talker(gateway)
    await talk.say(0, "left", keep="left")
    end = NewEntry("run.completed", AGENT, d.RunCompleted(summary="done", claims=[], verified=None))
    talk.hand.seen = (await gateway.store.facts(talk.run)).head
    await gateway.store.close(talk.hand.commit(end))
    async with gateway.socket() as wire:
        await wire.subscribe(talk.run, include=["delta"], after="0")
        await wire.until("end")
        assert deltas(wire) == []


async def test_the_texts_of_a_worker_over_http_end_with_the_run_and_reasoning_stays_with_operators(
    gateway: RunningGateway,
) -> None:
    await offer_essay(gateway)
    run = await start_essay(gateway)
    async with http_worker(gateway) as worker:
        await worker.claim()
        for message, kind in (("a", "text"), ("b", "text"), ("c", "reasoning"), ("d", "tool_arguments")):
            piece = {"message": message, "attempt": 1, "offset": 0, "text": f"this is {message}", "kind": kind}
            answer = await worker.call("POST", "deltas", json=piece)
            assert answer.status_code == 204, answer.text
        whole = {"attempt": 1, "role": "assistant", "kind": "text", "partial": False}
        await worker.write(
            data_of("message.completed", message="r", text="CANARY", **{**whole, "kind": "reasoning"}),
            data_of("message.completed", message="a", text="this is a, whole", **whole),
        )
        await worker.write(data_of("message.completed", message="b", text="whole too", **whole), DONE)
    headers = {"Authorization": f"Bearer {token('op', roles=('user', 'operator'))}"}
    answer = await gateway.http.get(f"/v1/runs/{run}/events", headers=headers)
    found = [(e["data"]["message"], e["data"]["text"], e["data"]["partial"], e["audience"])
             for e in answer.json()["events"] if e["type"] == "message.completed"]  # fmt: skip
    assert found == [
        ("r", "CANARY", False, "operator"), ("a", "this is a, whole", False, "collaborator"),
        ("b", "whole too", False, "collaborator"), ("c", "this is c", True, "operator"),
    ]  # fmt: skip
    assert [event["type"] for event in answer.json()["events"]][-2:] == ["message.completed", "run.completed"]
    assert "CANARY" not in (await gateway.http.get(f"/v1/runs/{run}/events")).text


@pytest.mark.parametrize("with_deltas", [False, True])
async def test_a_share_shows_text_only_if_it_says_so_and_only_what_viewers_read(
    gateway: RunningGateway, with_deltas: bool
) -> None:
    talk = await talker(gateway)
    answer = await gateway.http.post(
        f"/v1/runs/{talk.run}/shares", json={"expires_in_ms": 600_000, "deltas": with_deltas}
    )
    assert answer.status_code == 201, answer.text
    async with listening(gateway, talk, answer.json()["token"]) as wire:
        await talk.say(0, "for the team")
        await talk.say(0, "for all", message="m2", audience="viewer")
        if with_deltas:
            assert (await wire.until("delta"))["text"] == "for all"
        await talk.hand.note()
        await wire.until("events")
        assert len(deltas(wire)) == with_deltas


async def test_a_reader_who_loses_the_run_gets_no_more_of_its_text(gateway: RunningGateway) -> None:
    talk = await talker(gateway)
    path = f"/v1/runs/{talk.run}/grants/user:bea"
    assert (await gateway.http.put(path, json={"role": "collaborator"})).status_code < 300
    async with listening(gateway, talk, token("bea")) as wire:
        await talk.say(0, "seen")
        assert (await wire.until("delta"))["text"] == "seen"
        assert (await gateway.http.delete(path)).status_code < 300
        await wire.until("unsubscribed", code="revoked")
        await talk.say(4, " CANARY")
        await wire.send(op="ping", id="p")
        await wire.until("pong")
        assert "CANARY" not in "".join(frame["text"] for frame in deltas(wire))
