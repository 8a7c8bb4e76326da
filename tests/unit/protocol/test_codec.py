"""What may enter a log: events of the vocabulary, of their data, of bounded size, readable again."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.logs import event_data
from towline.protocol import event_data as d
from towline.protocol.codec import (
    Entry,
    EntryMeta,
    NewEntry,
    TooLarge,
    decode_entry,
    encode_envelope,
    encode_meta,
    meta_of,
    type_of,
)  # fmt: skip
from towline.protocol.cursor import Cursor
from towline.protocol.errors import ProblemError
from towline.protocol.events import EVENTS, Actor, data_of
from towline.protocol.limits import EVENT_BYTES
from towline.protocol.values import PlanItem

AGENT = Actor("agent", "wf:review")
ROBOT: Any = "robot"
EVERYONE: Any = "everyone"
FIVE: Any = 5


def stored(entry: NewEntry, seq: int = 7, tag: int = 9) -> Entry:
    """The entry as the script would store it."""
    raw = b'{"seq":%d,"ts":"2026-01-31T09:30:00.000Z","cause":null,' % seq + encode_envelope(entry)
    return decode_entry(f"{seq}-{tag}", raw, encode_meta(meta_of(entry, epoch=3, commit=2, seen="4-1", now_ms=5)))


@given(event_data())
def test_every_type_comes_back_as_it_went_in(typed: tuple[str, Any]) -> None:
    type_, data = typed
    entry = stored(NewEntry(type_, AGENT, data))
    event = entry.event()
    assert entry.cursor == Cursor(7, 9)
    is_reasoning = type_ == "message.completed" and data.kind == "reasoning"
    audience = "operator" if is_reasoning else EVENTS[type_].audience
    assert (event.seq, event.type, event.actor, event.audience) == (7, type_, AGENT, audience)
    assert data_of(event) == data
    assert type_of(entry.raw) == type_
    assert entry.meta == EntryMeta(audience, 3, 2, "4-1", 5)


def test_the_type_is_found_before_anything_a_producer_wrote() -> None:
    note = d.ProgressNoted(text='"type":"run.failed"', topic='","type":"x"')
    assert type_of(stored(NewEntry("progress.noted", Actor("user", '"type":"y"'), note)).raw) == "progress.noted"


def refused(entry: NewEntry) -> Any:
    with pytest.raises(ProblemError) as caught:
        encode_envelope(entry)
    return caught.value.problem


def test_a_type_outside_the_vocabulary_is_refused_with_the_list() -> None:
    problem = refused(NewEntry("run.exploded", AGENT, {}))
    assert (problem.code, problem.field) == ("bad_request", "type")
    assert "run.created" in problem.known


@pytest.mark.parametrize(
    ("type_", "data"),
    [
        ("timer.fired", {}),
        ("timer.fired", {"timer": 5}),
        ("timer.fired", None),
        ("timer.fired", []),
        ("plan.step", {"id": "1", "status": "nice"}),
        ("tool.started", d.TimerFired(timer="t")),
    ],
)
def test_data_of_another_form_is_refused(type_: str, data: Any) -> None:
    assert refused(NewEntry(type_, AGENT, data)).field == "data"


@pytest.mark.parametrize(
    "entry",
    [
        NewEntry("plan.proposed", AGENT, d.PlanProposed(items=[PlanItem("1", "x" * 201)])),
        NewEntry("plan.proposed", AGENT, d.PlanProposed(items=[PlanItem("1", "")])),
        NewEntry("timer.fired", Actor(ROBOT, "x"), d.TimerFired(timer="t")),
        NewEntry("timer.fired", AGENT, d.TimerFired(timer="t"), audience=EVERYONE),
        NewEntry("timer.fired", AGENT, d.TimerFired(timer=FIVE)),
        NewEntry("progress.noted", AGENT, d.ProgressNoted(text="\ud800")),
        NewEntry("progress.noted", AGENT, d.ProgressNoted(text="x", data=object())),
    ],
)
def test_what_could_not_be_read_again_never_enters(entry: NewEntry) -> None:
    assert refused(entry).code == "bad_request"


@given(st.integers(EVENT_BYTES - 400, EVENT_BYTES + 50))
def test_an_event_is_at_most_32_kib_as_it_stands_in_the_log(size: int) -> None:
    entry = NewEntry("progress.noted", AGENT, d.ProgressNoted(text="x" * size))
    try:
        body = encode_envelope(entry)
    except TooLarge as error:
        refusal = error
    else:
        longest = b'{"seq":%d,"ts":"2026-01-31T09:30:00.000Z","cause":%d,' % (10**9, 10**9)
        assert len(longest + body) <= EVENT_BYTES
        return
    assert refusal.size_bytes > EVENT_BYTES
    assert refusal.member == "text"


def test_a_narrower_audience_is_kept_in_both_places() -> None:
    entry = stored(NewEntry("timer.fired", AGENT, d.TimerFired(timer="t"), audience="operator"))
    assert entry.meta.audience == entry.event().audience == "operator"


def test_the_stamp_of_an_entry_that_no_holder_wrote_is_short() -> None:
    assert encode_meta(EntryMeta()) == b"{}"
    meta = meta_of(NewEntry("timer.fired", AGENT, d.TimerFired(timer="t"), is_input=True, key="k"))
    assert msgspec.json.decode(encode_meta(meta)) == {"k": "k", "i": True}
