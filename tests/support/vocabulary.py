"""Data for any type of the vocabulary, made from the types themselves: a new type or field is filled without a word.

Promises valid data of the type that is asked for; what stands in its leaves is up to a `Filler`. `Dice` fills them at
random with few ids, so that what opens and what closes meet, and with kinds of waits that fit their ids.
"""

import random
from collections.abc import Sequence
from typing import Any, Final, Protocol

from msgspec import Struct, inspect

from towline.protocol.event_data import RunWaiting
from towline.protocol.events import EVENTS
from towline.protocol.times import to_wire
from towline.protocol.values import WaitKind, WaitRef

START_MS: Final = 1_790_000_000_000
IDS: Final = frozenset({"request", "timer", "step", "id", "artifact", "message", "command_id"})
TIMES: Final = frozenset({"deadline", "due_at", "expires_at", "since", "retry_at", "at", "start_at", "deadline_at"})
"""Members that hold a time, by name."""


_WAITS: Final[dict[WaitKind, str]] = {
    "approval": "request", "input": "request", "child": "step", "timer": "timer", "signal": "signal",
}  # fmt: skip


class Filler(Protocol):
    """Gives the leaves. `path` is dotted, with the wire's names; list items are `0`, dictionary keys `key`."""

    def text(self, path: str) -> str: ...
    def number(self, path: str) -> int: ...
    def json(self, path: str) -> Any: ...
    def pick(self, path: str, options: Sequence[Any]) -> Any: ...
    def count(self, path: str) -> int: ...
    def has(self, path: str) -> bool: ...


def data_for(type_: str, filler: Filler) -> Any:
    """Data of an event type."""
    data = _value(inspect.type_info(EVENTS[type_].data), filler, "")
    if type_ == "budget.changed":  # the caps that there are stand in a struct of their own
        return type(data)(caps={"tokens": filler.number("tokens")}, by=data.by)
    return data


def leaf(path: str) -> str:
    """The name of the member that `path` leads to; of the list, for one of its items."""
    return next((part for part in reversed(path.split(".")) if part not in ("0", "1", "key")), "")


def _value(kind: inspect.Type, filler: Filler, path: str) -> Any:
    match kind:
        case inspect.Metadata():
            return _value(kind.type, filler, path)
        case inspect.UnionType():
            given = [each for each in kind.types if not isinstance(each, inspect.NoneType)]
            is_none = len(given) < len(kind.types) and not filler.has(path)
            return None if is_none else _value(given[0], filler, path)
        case inspect.StrType():
            return filler.text(path)
        case inspect.LiteralType():
            return filler.pick(path, kind.values)
        case inspect.BoolType():
            return filler.pick(path, (False, True))
        case inspect.IntType():
            return filler.number(path)
        case inspect.FloatType():
            return float(filler.number(path))
        case inspect.ListType():
            return [_value(kind.item_type, filler, _in(path, str(i))) for i in range(filler.count(path))]
        case inspect.DictType():
            key, value = _in(path, "key"), _in(path, "0")
            return {
                _value(kind.key_type, filler, key): _value(kind.value_type, filler, value)
                for _ in range(filler.count(path))
            }
        case inspect.StructType():
            members: dict[str, Any] = {}
            for field in kind.fields:
                inner = _in(path, field.encode_name)
                if field.required or filler.has(inner):
                    members[field.name] = _value(field.type, filler, inner)
            made: Struct = kind.cls(**members)
            return made
        case inspect.AnyType():
            return filler.json(path)
        case _:
            raise AssertionError(f"nothing fills {kind}")


def _in(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


class Dice:
    """Fills at random."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice

    def text(self, path: str) -> str:
        if leaf(path) in IDS:
            return f"{leaf(path)}-{self._dice.choice('abc')}"
        if leaf(path) in TIMES:
            return to_wire(START_MS + self._dice.randrange(10**6))
        return self._dice.choice(("one", "two", "ü", "🏁 three", "a\nb"))

    def waits(self) -> RunWaiting:
        """Data of `run.waiting`, whose ids are those of what opened the waits."""
        kinds = self._dice.sample(sorted(_WAITS), self._dice.randrange(4))
        return RunWaiting(on=[WaitRef(f"{_WAITS[kind]}-{self._dice.choice('abc')}", kind, "named") for kind in kinds])

    def number(self, path: str) -> int:
        return self._dice.randrange(1, 4)

    def json(self, path: str) -> Any:
        return self._dice.choice(({"a": [1, None]}, "text", 7, [{}]))

    def pick(self, path: str, options: Sequence[Any]) -> Any:
        return self._dice.choice(options)

    def count(self, path: str) -> int:
        return self._dice.randrange(3)

    def has(self, path: str) -> bool:
        return self._dice.random() < 0.5
