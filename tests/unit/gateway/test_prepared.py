"""What many readers are sent alike: framed once a class, within the bounds, as any client reads it."""

import msgspec
import pytest
from websockets.client import ClientProtocol
from websockets.frames import Frame
from websockets.protocol import OPEN
from websockets.uri import parse_uri

from towline.gateway.prepared import Batch, Shared, batches, chunks, text_frame
from towline.protocol.codec import Entry, EntryMeta
from towline.protocol.cursor import Cursor
from towline.protocol.limits import EVENTS_FRAME_BYTES
from towline.protocol.projection import Role, project_entry, reader_class


def entry(seq: int, *, kind: str = "message.completed", text: str = "said") -> Entry:
    envelope = {
        "seq": seq,
        "ts": "2026-11-30T00:00:00.000Z",
        "cause": None,
        "type": kind,
        "actor": {"kind": "agent", "id": "wf:toy"},
        "data": {"text": text},
        "ref": None,
        "audience": "collaborator",
    }
    return Entry(seq, 7, msgspec.json.encode(envelope), EntryMeta(audience="collaborator"))


def messages(wire: bytes) -> list[bytes]:
    """The messages in `wire`, as a client of another's making reads them."""
    client = ClientProtocol(parse_uri("ws://localhost/"), state=OPEN, max_size=None)
    client.receive_data(wire)
    frames = client.events_received()
    assert all(isinstance(f, Frame) and f.fin for f in frames)
    return [bytes(f.data) for f in frames if isinstance(f, Frame)]


@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536, 200_000])
def test_a_frame_is_read_by_any_client(size: int) -> None:
    assert messages(text_frame(b"x" * size) + text_frame(b"y")) == [b"x" * size, b"y"]


def test_one_class_is_framed_once_and_sees_what_its_role_sees() -> None:
    batch = Batch("a", [entry(4), entry(5)])
    assert (batch.first_seq, batch.last, batch.ending) == (4, Cursor(5, 7), None)
    assert batch.wire("collaborator") is batch.wire(reader_class("owner"))
    roles: tuple[Role, ...] = ("share", "viewer", "collaborator", "owner", "operator", "worker")
    for role in roles:
        (frame,) = map(msgspec.json.decode, messages(batch.wire(reader_class(role))))
        seen = [msgspec.json.decode(project_entry(e, role)) for e in batch.entries]
        assert frame == {"op": "events", "run": "a", "events": seen, "cursor": "5-7", "replay": False}


def test_frames_are_shared_by_who_may_see_the_same_and_forgotten_when_told_or_too_many() -> None:
    entries, size_bytes = [entry(4), entry(5)], 3000
    shared = Shared(kept_bytes=size_bytes)
    wire = shared.wire("a", entries, "operator", replay=True)
    assert shared.wire("a", list(entries), "operator", replay=True) is wire
    (frame,) = map(msgspec.json.decode, messages(wire))
    assert frame["replay"]
    assert frame["cursor"] == "5-7"
    assert len({shared.wire("a", entries, role, replay=False) for role in ("share", "viewer", "operator")}) == 3
    other = [msgspec.structs.replace(one, tag=8) for one in entries]
    assert messages(shared.wire("a", other, "operator", replay=True)) != messages(wire), "another history"
    for seq in range(10, 40):
        shared.wire("b", [entry(seq)], "operator", replay=True)
    assert 0 <= shared._left_bytes < size_bytes
    shared.forget("b")
    assert {run for run, *_ in shared._wires} <= {"a"}
    shared.forget()
    assert shared._left_bytes == size_bytes


def test_an_ending_is_told() -> None:
    assert Batch("a", [entry(4), entry(5, kind="run.failed")]).ending == "failed"


def test_frames_are_cut_at_their_bound_and_each_names_its_cursor() -> None:
    batch = Batch("a", [entry(n, text="x" * 20_000) for n in range(1, 9)])
    texts = messages(batch.wire("operator"))
    assert len(texts) > 1
    assert all(len(text) <= EVENTS_FRAME_BYTES for text in texts)
    frames = [msgspec.json.decode(text) for text in texts]
    assert [e["seq"] for f in frames for e in f["events"]] == list(range(1, 9))
    assert [f["cursor"] for f in frames] == [f"{f['events'][-1]['seq']}-7" for f in frames]
    big = [b"x" * EVENTS_FRAME_BYTES] * 3
    assert list(chunks(big)) == [(0, 1), (1, 2), (2, 3)]
    assert list(chunks([])) == []


def test_entries_are_cut_where_the_seq_jumps() -> None:
    found = batches("a", [entry(n) for n in (1, 2, 2, 3, 7)])
    assert [[e.seq for e in batch.entries] for batch in found] == [[1, 2], [2, 3], [7]]
    assert list(batches("a", [])) == []
