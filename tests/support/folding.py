"""A client that holds a Run: what it was shown, and what it was sent since, folded as the product folds a log.

Promises the one thing that a reader relies on: `Holding.differences` from the Run as it is shown at the end is empty.
A reader below a value's audience cannot fold it, so what the shown Run names in `redacted` is not compared, and of
`waiting_on` only timers and signals for who is not shown how requests open and end. Everything else is compared.
"""

from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec
from msgspec import inspect
from msgspec.structs import replace

from towline.protocol.events import EVENTS, Event
from towline.protocol.run import fold
from towline.protocol.run_state import Run

T = TypeVar("T")
OWN: Final = frozenset({"worker", "role", "actions", "redacted", "first_seq", "cursor"})
"""Members of a shown Run that are no fold of the log."""
_BESIDE: Final = frozenset({"audience", "deciders", "exclude", "may_answer"})
"""Members of a wait that the fold keeps for itself, or that are about who reads."""
_EVENT: Final = inspect.type_info(Event)
_RUN: Final = inspect.type_info(Run)
_DATA: Final = {type_: inspect.type_info(row.data) for type_, row in EVENTS.items()}


def shown(raw: bytes | msgspec.Raw) -> Event:
    """An event as it came, ready to be folded; `redacted` where something is missing."""
    event = msgspec.convert(_mend(_EVENT, msgspec.json.decode(raw)), Event)
    if is_hidden(event):
        return event
    return replace(event, data=_mend(_DATA[event.type], event.data))


def is_hidden(event: Event) -> bool:
    """Whether nothing of its data was shown: it moves the clock and the seq alone."""
    return event.redacted and event.data is None


class Holding:
    """A Run that was shown, and is folded on. `sees_requests`: whether the reader is shown the events of requests."""

    def __init__(self, wire: dict[str, Any], *, sees_requests: bool) -> None:
        self._sees_requests = sees_requests
        run: Run = msgspec.convert(_mend(_RUN, wire), Run)
        self.run = replace(run, waiting_on=self._compared(run.waiting_on, lambda wait: wait.kind))

    def _compared(self, waits: list[T], kind_of: Callable[[T], str]) -> list[T]:
        return [wait for wait in waits if self._sees_requests or kind_of(wait) in ("timer", "signal")]

    def take(self, event: Event) -> None:
        """Folds the next event, unless the Run holds it already."""
        if event.seq > self.run.last_seq:
            if is_hidden(event):
                event = replace(event, type="run.continued", data={"generation": 0}, audience="viewer")
            self.run = fold(self.run, event)

    def differences(self, wire: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
        """Each member that is not as in `wire`, the Run as this reader is shown it now: what is held, what is shown."""
        held, told = msgspec.to_builtins(self.run), {name: wire[name] for name in wire if name not in OWN}
        del held["audiences"]
        for run in (held, told):
            waits = self._compared(run["waiting_on"], lambda wait: wait["kind"])
            run["waiting_on"] = [{name: wait[name] for name in wait if name not in _BESIDE} for wait in waits]
            for path in wire["redacted"]:
                if path != "waiting_on.request":
                    _forget(run, path.split("."))
        return {
            name: (held.get(name), told.get(name))
            for name in held.keys() | told.keys()
            if _plain(held.get(name)) != _plain(told.get(name))
        }


def _forget(value: Any, path: list[str]) -> None:
    for one in value if isinstance(value, list) else [value]:
        if isinstance(one, dict):
            if len(path) == 1:
                one[path[0]] = None
            else:
                _forget(one.get(path[0]), path[1:])


def _plain(value: Any) -> Any:
    """`value` without what is null or was mended: a reader does not tell these apart."""
    if isinstance(value, dict):
        return {name: plain for name, each in value.items() if (plain := _plain(each)) is not None}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return None if value == "" else value


def _mend(kind: inspect.Type, value: Any) -> Any:
    """`value` with an empty one for each member that its type needs and the reader was not shown."""
    match kind:
        case inspect.Metadata():
            return _mend(kind.type, value)
        case inspect.UnionType():
            if value is None and any(isinstance(each, inspect.NoneType) for each in kind.types):
                return None
            return _mend(next(each for each in kind.types if not isinstance(each, inspect.NoneType)), value)
        case inspect.StructType():
            given = value or {}
            return {
                field.encode_name: _mend(field.type, given.get(field.encode_name))
                for field in kind.fields
                if field.required or given.get(field.encode_name) is not None
            }
        case inspect.ListType():
            return [_mend(kind.item_type, each) for each in value or []]
        case inspect.AnyType():
            return value
        case _ if value is not None:
            return value
        case inspect.LiteralType():
            return kind.values[0]
        case inspect.DictType():
            return {}
        case inspect.StrType():
            return ""
        case inspect.BoolType():
            return False
        case _:
            return 0
