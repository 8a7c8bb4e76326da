"""What a worker may ask to have written, event by event."""

from typing import Any

import pytest

from towline.protocol import event_data as d
from towline.protocol.appending import WRITABLE, Append, EventToAppend, Release, check_order, entry_of, typed
from towline.protocol.errors import ProblemError
from towline.protocol.events import EVENTS, Actor

ACTORS = Actor("agent", "wf:x"), Actor("worker", "w1")


@pytest.mark.parametrize("type_", sorted(set(EVENTS) - WRITABLE))
def test_what_is_others_to_write_is_refused_whatever_it_says(type_: str) -> None:
    with pytest.raises(ProblemError) as refused:
        typed(EventToAppend(type_, {}), 3, 10)
    assert refused.value.problem.field == "events[3].type"
    assert refused.value.problem.known == sorted(WRITABLE)


def test_no_input_can_be_written() -> None:
    assert [type_ for type_ in WRITABLE if EVENTS[type_].is_input] == []


def test_what_may_be_left_out_is_put_in() -> None:
    data = typed(EventToAppend("message.completed", {"message": "m", "text": "x"}), 0, 1).data
    assert data == d.MessageCompleted(message="m", attempt=1, role="assistant", kind="text", text="x", partial=False)


@pytest.mark.parametrize(
    ("event", "field"),
    [
        (EventToAppend("progress.noted", None), "events[0].data"),
        (EventToAppend("progress.noted", {"text": 5}), "events[0].data.text"),
        (EventToAppend("progress.noted", {"text": "x"}, cause=11), "events[0].cause"),
    ],
)
def test_a_refusal_names_the_field(event: EventToAppend, field: str) -> None:
    with pytest.raises(ProblemError) as refused:
        typed(event, 0, 10)
    assert refused.value.problem.field == field


@pytest.mark.parametrize(
    ("types", "release", "is_allowed"),
    [
        (["progress.noted", "run.completed"], None, True),
        (["run.completed", "progress.noted"], None, False),
        (["run.completed"], Release(), False),
        (["run.waiting"], None, False),
        (["run.waiting"], Release(), True),
        (["run.blocked", "run.waiting"], Release(), False),
        ([], Release(), True),
    ],
)
def test_what_gives_the_lease_back_comes_last(types: list[str], release: Release | None, is_allowed: bool) -> None:
    events = [EventToAppend(type_) for type_ in types]
    asked = Append(1, "1-1", events, release=release)
    if is_allowed:
        check_order(events, asked)
    else:
        with pytest.raises(ProblemError):
            check_order(events, asked)


@pytest.mark.parametrize(("type_", "actor"), [("run.started", ACTORS[1]), ("progress.noted", ACTORS[0])])
def test_the_actor_is_never_the_workers_word(type_: str, actor: Actor) -> None:
    data: dict[str, Any] = {"worker": "w9"} if type_ == "run.started" else {"text": "x", "actor": {"id": "eve"}}
    entry = entry_of(typed(EventToAppend(type_, data, private=None), 0, 1), ACTORS)
    assert (entry.actor, entry.private) == (actor, b"null")
