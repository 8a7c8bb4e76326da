"""What a worker without our engine asks to have written: its shape, and which events are its to write.

Promises that such a worker cannot forge what is others' to say (inputs, decisions, access), and that each event it
gets through has the data of its type, with what it may leave out put in. Leaves what follows from an event to
`store.channel`.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from towline.protocol.codec import NewEntry
from towline.protocol.errors import problem
from towline.protocol.events import EVENTS, TERMINAL, Actor, Audience
from towline.protocol.limits import MAX_SEQ, SCRIPT_ENTRIES
from towline.protocol.validation import to_type
from towline.protocol.values import WaitRef

WRITABLE: Final = frozenset(
    {"run.started", "run.taken_over", "run.waiting", "run.resumed", "run.blocked", *TERMINAL}
    | {"plan.proposed", "plan.revised", "plan.step", "tool.started", "tool.retrying", "tool.finished", "tool.failed"}
    | {"message.completed", "progress.noted", "checkpoint.saved", "approval.requested", "approval.lapsed"}
    | {"input.requested"}
    | {"blocker.raised", "blocker.cleared", "timer.started", "marker.recorded"}
)
"""What such a worker may append. Inputs are others' to write; outcomes and artifacts come on their own ways."""

_BY_WORKER: Final = frozenset({"run.started", "run.taken_over", "run.resumed"})


class EventToAppend(Struct, frozen=True):
    """One event. `private`: what only history shows. `cause`: seq of the event that led to it."""

    type: str
    data: Any = None
    private: Any | UnsetType = UNSET
    audience: Audience | None = None
    cause: Annotated[int, Meta(ge=1, le=MAX_SEQ)] | None = None


class CommandResult(Struct, frozen=True):
    """What became of an accepted command. `seq` tells apart what two people sent under one id."""

    command_id: str
    status: Literal["applied", "rejected"]
    effect: str | None = None
    result: Any = None
    code: str | None = None
    text: str | None = None
    seq: int | None = None


class Release(Struct, frozen=True):
    """The lease is given back: until a time, or for what is in `on` (waits, or ids of open approvals), or at once."""

    until: str | None = None
    on: Annotated[list[WaitRef | str], Meta(max_length=100)] | None = None


class Append(Struct, frozen=True):
    """The body of `POST …/events`. `commit` counts per lease; `seen` is the cursor up to which inputs were read."""

    commit: Annotated[int, Meta(ge=1, le=MAX_SEQ)]
    seen: str
    events: Annotated[list[EventToAppend], Meta(max_length=SCRIPT_ENTRIES)] = []
    outcomes: Annotated[list[CommandResult], Meta(max_length=SCRIPT_ENTRIES)] = []
    release: Release | None = None


def typed(event: EventToAppend, position: int, head_seq: int) -> EventToAppend:
    """`event` if a worker may append such a one."""
    if event.type not in WRITABLE:
        raise problem(
            "bad_request",
            f"A worker does not append {event.type!r}.",
            field=f"events[{position}].type",
            known=sorted(WRITABLE),
        )
    if not isinstance(event.data, dict):
        raise problem("bad_request", "The data of an event is an object.", field=f"events[{position}].data")
    if event.cause is not None and event.cause > head_seq:
        raise problem("bad_request", "No event has this seq.", field=f"events[{position}].cause")
    defaults = _DEFAULTS.get(event.type, {})
    data = to_type(
        {**defaults, **event.data}, EVENTS[event.type].data, what=event.type, prefix=f"events[{position}].data."
    )
    return msgspec.structs.replace(event, data=data)


_DEFAULTS: Final[dict[str, dict[str, Any]]] = {
    "run.completed": {"claims": [], "verified": None},
    "run.failed": {"checkpoint": None, "abandoned": []},
    "run.cancelled": {"by": "system", "forced": False, "abandoned": []},
    "approval.requested": {
        "digest": "",
        "questions": [],
        "deciders": ["role:owner"],
        "exclude": [],
        "quorum": 1,
    },
    "input.requested": {"answerers": ["role:owner"], "on_expire": "fail"},
    "checkpoint.saved": {"evidence": [], "automatic": False},
    "tool.started": {"attempt": 1},
    "tool.finished": {"attempt": 1},
    "tool.failed": {"attempt": 1},
    "message.completed": {"attempt": 1, "role": "assistant", "kind": "text", "partial": False},
}
"""What is put in for a worker that leaves it out; what only we can know is put right where it is written."""


def check_order(events: Sequence[EventToAppend], asked: Append) -> None:
    """Raises `bad_request` where an event that gives the lease back is not the last."""
    for position, event in enumerate(events):
        field = f"events[{position}].type"
        if event.type in TERMINAL and (position < len(events) - 1 or asked.release is not None):
            raise problem(
                "bad_request", "The event that ends a run is the last, and gives the lease back.", field=field
            )
        if event.type in ("run.waiting", "run.blocked") and (position < len(events) - 1 or asked.release is None):
            raise problem("bad_request", f"{event.type} is the last event before a `release`.", field=field)


def entry_of(event: EventToAppend, actors: tuple[Actor, Actor]) -> NewEntry:
    """The entry of a typed event; `actors` are the agent and the worker."""
    private = None if event.private is UNSET else msgspec.json.encode(event.private)
    actor = actors[event.type in _BY_WORKER]
    return NewEntry(event.type, actor, event.data, audience=event.audience, cause=event.cause, private=private)
