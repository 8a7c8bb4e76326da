"""Random event data and random valid logs, for Hypothesis.

`event_data` gives (type, typed data) for any type of the vocabulary; `logs` gives whole logs that begin with
`run.created`, whose times never run backwards, and of which at most the last event is terminal.
"""

from typing import Any

import msgspec
from hypothesis import strategies as st
from msgspec import inspect

from towline.protocol.events import EVENTS, TERMINAL, Actor, Audience, Event
from towline.protocol.times import to_wire

START_MS = 1_760_000_000_000
IDS = st.sampled_from(["a", "b", "c"])
"""Few ids, so that what opens and what closes meet."""

TIMES = st.integers(START_MS, START_MS + 10**6).map(to_wire)
_ID_NAMES = {"request", "timer", "step", "id", "artifact", "message", "command_id"}
_TIME_NAMES = {"deadline", "due_at", "expires_at", "since", "retry_at", "at", "start_at", "deadline_at"}
JSON = st.recursive(st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3), lambda c: st.lists(c) | (
    st.dictionaries(st.text(max_size=3), c, max_size=2)), max_leaves=3)  # fmt: skip


def _values(kind: inspect.Type, name: str = "") -> st.SearchStrategy[Any]:
    if isinstance(kind, inspect.Metadata):
        return _values(kind.type, name)
    if isinstance(kind, inspect.UnionType):
        return st.one_of(*(_values(k, name) for k in kind.types))
    if isinstance(kind, inspect.StrType):
        if name in _ID_NAMES:
            return IDS
        if name in _TIME_NAMES:
            return TIMES
        return st.text(min_size=kind.min_length or 0, max_size=6)
    if isinstance(kind, inspect.LiteralType):
        return st.sampled_from(kind.values)
    if isinstance(kind, inspect.IntType):
        return st.integers(0, 5) if name in ("attempt", "seq", "quorum") else st.integers(0, 10**6)
    if isinstance(kind, inspect.ListType):
        return st.lists(_values(kind.item_type, name), max_size=2)
    if isinstance(kind, inspect.DictType):
        return st.dictionaries(_values(kind.key_type), _values(kind.value_type), max_size=2)
    if isinstance(kind, inspect.StructType):
        return _struct(kind)
    if isinstance(kind, inspect.NoneType):
        return st.none()
    if isinstance(kind, inspect.BoolType):
        return st.booleans()
    if isinstance(kind, inspect.FloatType):
        return st.floats(0, 100).map(lambda x: round(x, 2))
    assert isinstance(kind, inspect.AnyType), kind
    return JSON


def _struct(kind: inspect.StructType) -> st.SearchStrategy[Any]:
    required = {f.name: _values(f.type, f.name) for f in kind.fields if f.required}
    optional = {f.name: _values(f.type, f.name) for f in kind.fields if not f.required}
    return st.fixed_dictionaries(required, optional=optional).map(lambda members: kind.cls(**members))


_DATA = {
    name: _struct(t) for name, row in EVENTS.items() if isinstance(t := inspect.type_info(row.data), inspect.StructType)
}


@st.composite
def event_data(draw: st.DrawFn, types: tuple[str, ...] = tuple(EVENTS)) -> tuple[str, Any]:
    """(type, typed data). `budget.changed` names caps that exist."""
    type_ = draw(st.sampled_from(types))
    data = draw(_DATA[type_])
    if type_ == "budget.changed":
        caps = draw(st.dictionaries(st.sampled_from(["tokens", "steps", "usd_micros"]), st.integers(0, 9)))
        data = msgspec.structs.replace(data, caps=caps)
    return type_, data


@st.composite
def events(draw: st.DrawFn, type_: str, seq: int, at_ms: int) -> Event:
    """One event of a type, as it is read back from a log; now and then of another audience than the default."""
    _, data = draw(event_data((type_,)))
    audiences: list[Audience] = [*(EVENTS[type_].audience for _ in range(4)), "viewer", "collaborator", "operator"]
    audience = draw(st.sampled_from(audiences))
    ref = draw(st.sampled_from([None, None, None, "pay_1"])) if EVENTS[type_].spill else None
    wire = msgspec.json.decode(msgspec.json.encode(data))
    return Event(seq, to_wire(at_ms), type_, Actor("agent", "wf:x"), wire, ref, audience)


@st.composite
def logs(draw: st.DrawFn, longest: int = 15) -> list[Event]:
    """A whole log."""
    between = [name for name in EVENTS if name not in TERMINAL and name != "run.created"]
    types = ["run.created", *draw(st.lists(st.sampled_from(between), max_size=longest))]
    types += draw(st.sampled_from([[], *([t] for t in sorted(TERMINAL))]))
    at_ms, log = START_MS, list[Event]()
    for seq, type_ in enumerate(types, 1):
        at_ms += draw(st.integers(0, 5000))
        log.append(draw(events(type_, seq, at_ms)))
    return log
