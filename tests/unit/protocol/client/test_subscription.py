"""A followed run: every event once and in order, whatever the server sends.

A random server that breaks off anywhere stands in tests/model."""

from typing import Any

import pytest

from tests.support.client_peer import HALF, Peer, events, followed
from towline.protocol.client.actions import (
    CloseSocket,
    Connect,
    Dropped,
    Ended,
    Live,
    Placed,
    Received,
)
from towline.protocol.client.machine import ClientMachine
from towline.protocol.cursor import BadCursor


def test_it_greets_first_and_subscribes_once_welcome() -> None:
    peer = Peer()
    states = [peer.machine.state]
    peer.machine.follow("r", "3-9")
    peer.drain()
    assert peer.orders == [Connect()]
    states.append(peer.machine.state)
    peer.welcome()
    assert [frame["op"] for frame in peer.sent] == ["hello", "subscribe"]
    assert peer.sent[0]["token"] == "tok"
    assert peer.last("subscribe")["after"] == "3-9"
    assert [*states, peer.machine.state] == ["idle", "connecting", "replaying"]


def test_events_live_and_end_are_told_in_order() -> None:
    peer = followed()
    peer.receive(events("r", 1, 2), {"op": "live", "run": "r", "cursor": "2-7"})
    assert peer.machine.state == "live"
    peer.receive(events("r", 3), {"op": "end", "run": "r", "cursor": "3-7", "status": "completed"})
    assert [type(n) for n in peer.news] == [Placed, Received, Live, Received, Ended]
    assert peer.seqs() == [1, 2, 3]
    assert peer.news[-1] == Ended("r", "3-7", "completed")


def test_only_the_last_event_of_a_batch_has_a_cursor() -> None:
    peer = followed()
    peer.receive(events("r", 1, 2))
    received = [n for n in peer.news if isinstance(n, Received)]
    assert [e.cursor for e in received[0].events] == [None, "2-7"]


def test_a_hole_is_asked_for_again_and_nothing_beyond_it_is_told() -> None:
    peer = followed()
    peer.receive(events("r", 1), events("r", 3, 4))
    assert peer.seqs() == [1]
    assert peer.last("subscribe")["after"] == "1-7"
    # What the server still sends for the old subscription counts no more.
    peer.receive(events("r", 5), {"op": "unsubscribed", "run": "r", "code": "replaced"})
    peer.subscribed("1-7")
    peer.receive(events("r", 2, 3, 4, 5))
    assert peer.seqs() == [1, 2, 3, 4, 5]


def test_a_repeat_is_dropped() -> None:
    peer = followed()
    peer.receive(events("r", 1, 2), events("r", 1, 2), events("r", 2, 3))
    assert peer.seqs() == [1, 2, 3]
    assert peer.count("subscribe") == 1


def test_a_live_mark_ahead_of_the_events_is_a_hole() -> None:
    peer = followed()
    peer.receive(events("r", 1), {"op": "live", "run": "r", "cursor": "4-1"})
    assert peer.count("subscribe") == 2
    assert not any(isinstance(n, Live) for n in peer.news)


def test_a_server_that_never_gives_what_follows_costs_the_socket_not_a_loop() -> None:
    peer = followed()
    for _ in range(10):
        peer.receive(events("r", 5))
        if peer.orders[-1] != Connect():
            break
        peer.subscribed("0")
    assert isinstance(peer.orders[-1], CloseSocket)
    assert peer.orders[-1].code == 4010
    peer.close(4010)
    assert peer.machine.state == "connecting"


def test_a_new_socket_resumes_from_the_cursor() -> None:
    peer = followed()
    peer.receive(events("r", 1, 2))
    peer.close(1006)
    peer.wait()
    assert peer.orders == [Connect(), Connect()]
    peer.welcome()
    assert peer.last("subscribe")["after"] == "2-7"
    peer.subscribed("2-7")
    peer.receive(events("r", 3))
    assert peer.seqs() == [1, 2, 3]


def test_resumed_elsewhere_than_asked_is_not_believed() -> None:
    peer = followed()
    peer.receive(events("r", 1))
    peer.close(1006)
    peer.wait()
    peer.welcome()
    peer.subscribed("2-7")
    assert sum(isinstance(n, Placed) for n in peer.news) == 1
    assert peer.count("subscribe") == 3


def test_reset_starts_again_where_the_server_says() -> None:
    peer = followed("5-1", "5-1")
    peer.receive(events("r", 6))
    peer.close(1006)
    peer.wait()
    peer.welcome()
    peer.subscribed("0", "reset", recovery_code="diverged", projection={"id": "r"})
    peer.receive(events("r", 1, 2))
    assert peer.seqs() == [6, 1, 2]
    placed = [n for n in peer.news if isinstance(n, Placed)][-1]
    assert (placed.recovery, placed.code, placed.projection) == ("reset", "diverged", {"id": "r"})


@pytest.mark.parametrize("gap", [{"recovery_code": "trimmed", "lost": [3, 8]}, {"skipped": [3, 8]}])
def test_a_snapshot_says_what_will_not_come(gap: dict[str, Any]) -> None:
    peer = followed("2-1", "2-1")
    peer.close(1006)
    peer.wait()
    peer.welcome()
    peer.subscribed("8-4", "snapshot", **gap)
    peer.receive(events("r", 9))
    placed = [n for n in peer.news if isinstance(n, Placed)][-1]
    assert (placed.lost or placed.skipped) == (3, 8)
    assert peer.seqs() == [9]


def test_latest_is_placed_by_the_server() -> None:
    peer = followed("latest", "41-5")
    peer.receive({"op": "live", "run": "r", "cursor": "41-5"}, events("r", 42))
    assert peer.seqs() == [42]


def test_a_heartbeat_with_a_head_above_ours_asks_again() -> None:
    peer = followed()
    peer.receive(events("r", 1), {"op": "live", "run": "r", "cursor": "1-7"})
    peer.receive({"op": "heartbeat", "heads": {"r": 1, "other": 9}, "workers": {}})
    assert peer.count("subscribe") == 1
    peer.receive({"op": "heartbeat", "heads": {"r": 2}, "workers": {}})
    assert peer.last("subscribe")["after"] == "1-7"


def test_shed_comes_back_after_the_named_time() -> None:
    peer = followed()
    peer.receive({"op": "unsubscribed", "run": "r", "code": "shed", "retry_ms": 3_000})
    assert peer.count("subscribe") == 1
    assert peer.wait() == 3_000
    assert peer.count("subscribe") == 2


@pytest.mark.parametrize("code", ["revoked", "purged"])
def test_a_subscription_taken_away_is_not_asked_for_again(code: str) -> None:
    peer = followed()
    peer.receive({"op": "unsubscribed", "run": "r", "code": code})
    assert peer.news[-1] == Dropped("r", code, None)
    peer.close(1006)
    peer.wait()
    peer.welcome()
    assert peer.count("subscribe") == 1


def test_a_refused_subscription_is_told_and_a_store_away_is_tried_again() -> None:
    peer = Peer()
    peer.machine.follow("r")
    peer.machine.follow("gone")
    peer.drain()
    peer.welcome()
    first, second = (frame for frame in peer.sent if frame["op"] == "subscribe")
    peer.receive({"op": "problem", "id": first["id"], "run": "r", "problem": {"code": "unavailable", "status": 503}})
    peer.receive({"op": "problem", "id": second["id"], "run": "gone", "problem": {"code": "gone", "status": 410}})
    assert peer.news == [Dropped("gone", "gone", {"code": "gone", "status": 410})]
    peer.wait()
    assert peer.last("subscribe")["run"] == "r"
    assert peer.count("subscribe") == 3


def test_held_is_quiet_and_released_goes_on_from_its_place() -> None:
    peer = followed()
    peer.receive(events("r", 1))
    peer.machine.hold("r")
    peer.drain()
    assert peer.last("unsubscribe")["run"] == "r"
    peer.receive(events("r", 2), {"op": "unsubscribed", "run": "r", "code": "requested"})
    assert peer.seqs() == [1]
    peer.machine.release("r")
    peer.drain()
    assert peer.last("subscribe")["after"] == "1-7"
    peer.subscribed("1-7")
    peer.receive(events("r", 2))
    assert peer.seqs() == [1, 2]


def test_what_is_new_is_ignored() -> None:
    peer = followed()
    peer.receive({"op": "sparkle", "run": "r"}, {"op": "sparkle"}, events("r", 1) | {"more": 1})
    assert peer.seqs() == [1]
    assert peer.count("subscribe") == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "nonsense",
        b"\xff",
        '{"op":"events","run":"r"}',
        '{"op":"bye","code":"x"}',
        '{"op":"heartbeat","heads":3}',
        '{"op":"live","run":"r","cursor":"x"}',
        '{"op":"problem","problem":4}',
    ],
)
def test_what_is_no_frame_costs_the_socket(text: str | bytes) -> None:
    peer = followed()
    peer.machine.receive_text(text, peer.now_ms)
    peer.drain()
    assert isinstance(peer.orders[-1], CloseSocket)
    peer.close(1002)
    assert peer.machine.state == "connecting"


def test_a_bad_cursor_and_a_second_place_in_a_run_are_refused() -> None:
    machine = ClientMachine("tok", random=lambda: HALF)
    with pytest.raises(BadCursor):
        machine.follow("r", "yesterday")
    machine.follow("r")
    with pytest.raises(ValueError, match="one place"):
        machine.follow("r")


def test_stop_closes_for_good() -> None:
    peer = followed()
    peer.machine.stop()
    peer.drain()
    assert peer.orders[-1] == CloseSocket(1000, "done")
    peer.close(1000)
    assert peer.machine.state == "closed"
    assert peer.machine.deadline() is None
