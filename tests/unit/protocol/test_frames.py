"""Frames: any text becomes a frame, a refusal that names the field, or no frame at all."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from towline.protocol import commands
from towline.protocol import frames as f
from towline.protocol.cursor import Cursor
from towline.protocol.errors import Problem
from towline.protocol.limits import Limits


def read(**frame: Any) -> f.ClientFrame:
    return f.read_client_frame(msgspec.json.encode(frame))


def refusal(**frame: Any) -> f.FrameRefused:
    with pytest.raises(f.FrameRefused) as refused:
        read(**frame)
    return refused.value


def test_each_client_frame_is_read() -> None:
    assert read(op="hello", token="t") == f.Hello("t")
    assert read(op="subscribe", id="a", run="r") == f.Subscribe("a", "r")
    assert read(op="subscribe", id="a", run="r", after="3-4", limit=2, include=["delta"], later=1) == f.Subscribe(
        "a", "r", "3-4", 2, ["delta"]
    )
    assert read(op="unsubscribe", id="a", run="r") == f.Unsubscribe("a", "r")
    assert read(op="command", id="a", run="r", type="x", command_id="k") == f.CommandFrame("a", "r", "x", "k")
    assert read(op="watch", id="a", feed="inbox") == f.Watch("a", "inbox")
    assert read(op="auth", id="a", token="t") == f.Auth("a", "t")
    assert read(op="ping") == f.Ping()


@pytest.mark.parametrize(
    ("frame", "field"),
    [
        ({"op": "subscribe", "run": "r"}, "id"),
        ({"op": "subscribe", "id": "i" * 65, "run": "r"}, "id"),
        ({"op": "subscribe", "id": 4, "run": "r"}, "id"),
        ({"op": "subscribe", "id": "a"}, "run"),
        ({"op": "subscribe", "id": "a", "run": "{tl:07}"}, "run"),
        ({"op": "subscribe", "id": "a", "run": "r", "limit": 0}, "limit"),
        ({"op": "subscribe", "id": "a", "run": "r", "limit": 10_001}, "limit"),
        ({"op": "subscribe", "id": "a", "run": "r", "limit": 1.5}, "limit"),
        ({"op": "subscribe", "id": "a", "run": "r", "include": ["all"]}, "include[0]"),
        ({"op": "command", "id": "a", "run": "r", "type": "cancel"}, "command_id"),
        ({"op": "command", "id": "a", "run": "r", "type": "x", "command_id": "k", "wait": "ever"}, "wait"),
        ({"op": "command", "id": "a", "run": "r", "type": "x", "command_id": "k", "timeout_ms": -1}, "timeout_ms"),
        ({"op": "watch", "id": "a", "feed": "all"}, "feed"),
        ({"op": "auth", "id": "a"}, "token"),
        ({"op": "hello", "token": 7}, "token"),
        ({"op": "nope", "id": "a"}, "op"),
    ],
)
def test_a_wrong_member_is_named(frame: dict[str, Any], field: str) -> None:
    refused = refusal(**frame)
    assert (refused.problem.code, refused.problem.field) == ("bad_request", field)
    assert refused.problem.expected or refused.problem.known
    assert refused.id == (frame["id"] if isinstance(frame.get("id"), str) and len(frame["id"]) <= 64 else None)


def test_unknown_words_are_refused_with_the_known_ones() -> None:
    assert refusal(op="nope").problem.known == ["hello", "subscribe", "unsubscribe", "command", "watch", "auth", "ping"]
    assert refusal(op="watch", id="a", feed="all").problem.known == ["inbox", "runs"]
    assert refusal(op="subscribe", id="a", run="r", include=["x"]).problem.known == ["delta"]


@pytest.mark.parametrize(
    "text", ["", "null", "4", "[]", '"hello"', "{}", '{"op":4}', '{"op":null}', '{"op":"ping"', "\0"]
)
def test_what_is_no_frame(text: str) -> None:
    with pytest.raises(f.NotAFrame):
        f.read_client_frame(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"op":"ping","x":' + "[" * 100 + "]" * 100 + "}",
        '{"op":"ping","x":' + "[" * 30_000 + "]" * 30_000 + "}",
        '{"op":"ping","x":1e999}',
        '{"op":"ping","x":' + "9" * 40 + "}",
    ],
)
def test_extremes_are_refused(text: str) -> None:
    with pytest.raises(f.FrameRefused):
        f.read_client_frame(text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=15,
)
members = st.sampled_from(
    [
        "op",
        "id",
        "run",
        "after",
        "limit",
        "include",
        "type",
        "data",
        "command_id",
        "wait",
        "feed",
        "token",
        "timeout_ms",
    ]
)


@given(
    st.dictionaries(members, json_values | st.sampled_from([*f.CLIENT_OPS, "r", "applied"])),
    st.sampled_from(f.CLIENT_OPS),
)
def test_any_object_is_a_frame_or_refused(frame: dict[str, Any], op: str) -> None:
    for value in (frame, {**frame, "op": op}):
        try:
            read_back = f.read_client_frame(msgspec.json.encode(value))
        except (f.NotAFrame, f.FrameRefused):
            continue
        assert msgspec.json.decode(f.encode(read_back))["op"] == value["op"]


@given(st.binary(max_size=200) | st.text(max_size=200))
def test_any_bytes_are_a_frame_or_refused(data: bytes | str) -> None:
    with pytest.raises((f.NotAFrame, f.FrameRefused)):
        f.read_client_frame(data)


def test_events_carry_the_bytes_of_the_log() -> None:
    raw = [b'{"seq":1,  "odd" : "spacing"}', b'{"seq":2}']
    sent = f.encode(f.events("r", raw, Cursor(2, 9), replay=True))
    assert sent == b'{"op":"events","run":"r","events":[' + b",".join(raw) + b'],"cursor":"2-9","replay":true}'


SERVER: list[f.ServerFrame] = [
    f.Welcome("con_1", 25_000, Limits(), "t"),
    f.Subscribed("s", "r", "snapshot", {}, "1-2", 9, 1, "limited", skipped=(2, 3)),
    f.Live("r", "1-2"),
    f.Delta("r", "m", 1, 0, "x"),
    f.End("r", "1-2", "completed"),
    f.Unsubscribed("r", "requested", "s"),
    f.receipt("c", commands.receipt("k", "cancel", "accepted", seq=4, applies="now")),
    f.Watching("w", "1-2"),
    f.Changed("w", "r", "running", 3, 0),
    f.Heartbeat({"r": 4}, {"r": f.WorkerBeat("t", None)}),
    f.AuthRequired("t"),
    f.Authenticated("a", "ana", "t"),
    f.Pong(),
    f.refused(Problem("bad_request", "no"), request_id="q", frame_id="a"),
    f.Bye(4000, "drain", 5),
]


@pytest.mark.parametrize("frame", SERVER, ids=lambda frame: type(frame).__name__)
def test_each_server_frame_travels(frame: f.ServerFrame) -> None:
    assert f.read_server_frame(f.encode(frame)) == frame


def test_what_may_be_absent_is_absent() -> None:
    assert f.encode(f.Pong()) == b'{"op":"pong"}'
    sent = msgspec.json.decode(f.encode(f.Subscribed("s", "r", "resumed", {}, "0", 0, 1)))
    assert sent.keys() == {"op", "id", "run", "recovery", "projection", "cursor", "head", "first_seq"}
    assert msgspec.json.decode(f.encode(SERVER[6])) == {
        "op": "receipt",
        "id": "c",
        "command_id": "k",
        "type": "cancel",
        "status": "accepted",
        "duplicate": False,
        "seq": 4,
        "applies": "now",
    }
