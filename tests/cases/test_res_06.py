"""An event that cannot be stored burns no number, and a reader never joins what is not joined.

The symptom: a number was taken before the event was encoded; when that failed, the log had a hole for ever.
"""

from typing import Any

import pytest

from tests.support.client_peer import events, followed
from tests.support.gateway import AGENT, RunningGateway, note
from tests.support.transports import TRANSPORTS, read
from towline.protocol import event_data as d
from towline.protocol.codec import NewEntry

BAD: list[Any] = [
    d.ProgressNoted(text="a lone surrogate \ud800"),
    d.ProgressNoted(text="x", data=object()),
    d.ProgressNoted(text="x" * 40_000),
    d.ProgressNoted(text=7),  # type: ignore[arg-type]
    {"text": None},
]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_what_cannot_be_stored_leaves_no_hole(gateway: RunningGateway, transport: str) -> None:
    run = await gateway.start()
    hand = await gateway.hold(run)
    for number, data in enumerate(BAD):
        await hand.note(f"good {number}")
        commit = hand.commit(note("good with it"), NewEntry("progress.noted", AGENT, data))
        with pytest.raises(Exception):  # noqa: B017, PT011 - whatever refuses it, nothing of the commit is written
            await gateway.store.commit(commit)
        hand._number -= 1
    answer = await read(gateway, transport, run, "0")
    assert answer.seqs == list(range(1, 3 + len(BAD)))
    assert [event["data"]["text"] for event in answer.events[2:]] == [f"good {n} 0" for n in range(len(BAD))]


def test_a_client_stops_before_a_hole_and_reads_again_from_where_it_stands() -> None:
    peer = followed()
    peer.receive(events("r", 1, 2, 3, 4), events("r", 7))
    assert peer.seqs() == [1, 2, 3, 4], "nothing of what lies beyond the hole is told"
    again = peer.last("subscribe")
    assert (peer.count("subscribe"), again["after"]) == (2, "4-7")
    peer.receive(events("r", 8))  # still of before
    assert peer.seqs() == [1, 2, 3, 4]
    peer.subscribed("4-7")
    peer.receive(events("r", 5, 6, 7, 8))
    assert peer.seqs() == list(range(1, 9))
