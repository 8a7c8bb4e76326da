"""From untrusted JSON to typed values: what a client sent becomes a value of ours or a problem that helps.

Promises that whatever bytes come in, `read_json` and `to_type` return or raise `ProblemError` (`bad_request`, with
`field`, `expected` and, for a closed set of words, `known`); and that what they return can be encoded again: at
most 64 levels deep, numbers of 64 bits. Leaves what the values mean to their owners.
"""

import re
from collections.abc import Iterator
from typing import Any, Final, TypeVar

import msgspec
from msgspec import inspect

from towline.protocol import times
from towline.protocol.errors import ProblemError, problem

T = TypeVar("T")

MAX_DEPTH: Final = 64
_MIN_INT: Final = -(2**63)
_MAX_INT: Final = 2**64 - 1
_PATH: Final = re.compile(r" - at `(?:key in )?\$(.*)`\Z", re.DOTALL)
_QUOTED: Final = re.compile(r"`([^`]*)`")


class NotJson(ValueError):
    """Not one JSON text in UTF-8."""


def read_json(data: bytes | str) -> Any:
    """The value that `data` encodes. Raises `NotJson`, or `ProblemError` for one too deep or numbers too large."""
    try:
        value = msgspec.json.decode(data)
    except RecursionError:
        raise _too_deep() from None
    except msgspec.ValidationError as error:
        raise problem(
            "bad_request", f"A number in it is not one we take: {error}.", expected="64 bit numbers"
        ) from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise NotJson(str(error)) from None
    refuse_extremes(value)
    return value


def refuse_extremes(value: Any) -> None:
    """Raises `ProblemError` if a decoded `value` is too deep, or holds an integer of more than 64 bits."""
    level, depth = [value], 0
    while level:
        for item in level:
            if isinstance(item, int) and not _MIN_INT <= item <= _MAX_INT:
                raise problem("bad_request", "An integer in it has more than 64 bits.", expected="64 bit numbers")
        containers = [item for item in level if isinstance(item, dict | list)]
        if containers and depth == MAX_DEPTH:
            raise _too_deep()
        level = [child for item in containers for child in _children(item)]
        depth += 1


def _children(item: dict[str, Any] | list[Any]) -> Iterator[Any]:
    return iter(item.values()) if isinstance(item, dict) else iter(item)


def _too_deep() -> ProblemError:
    return problem("bad_request", f"It is nested deeper than {MAX_DEPTH} levels.", limit=MAX_DEPTH)


def to_type(value: Any, kind: type[T], *, what: str, prefix: str = "") -> T:
    """`value`, decoded JSON, as a `kind`.

    `what` names it in the sentence for people ("the body", "a subscribe frame"); `prefix` goes before the field
    ("data." for a nested value). Raises `ProblemError` (`bad_request`).
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        text = str(error)
    path = match[1].lstrip(".") if (match := _PATH.search(text)) else ""
    said = _PATH.sub("", text)
    expected: str | None = None
    known: list[str] | None = None
    if said.startswith("Object missing required field"):
        name = _QUOTED.findall(said)[-1]
        path = f"{path}.{name}" if path else name
        expected = "a value"
    elif said.startswith("Expected"):
        expected = said.removeprefix("Expected ").partition(", got")[0].replace("`", "")
    elif said.startswith("Invalid enum value"):
        known = _words_at(inspect.type_info(kind), path)
    field = (prefix + path).rstrip(".") or None
    raise problem("bad_request", f"Not {what}: {said}.", field=field, expected=expected, known=known)


def to_time_ms(text: str, field: str) -> int:
    """A time from the wire, in milliseconds since 1970. Raises `bad_request` on `field`."""
    try:
        at_ms = times.from_wire(text)
        if at_ms < 0 or times.from_wire(times.to_wire(at_ms)) != at_ms:
            raise ValueError(text)  # beyond the years that have a wire form
    except (ValueError, OverflowError):
        raise problem(
            "bad_request", f"{field} is not a time such as 2026-01-31T09:30:00.000Z.", field=field, expected="a time"
        ) from None
    return at_ms


def _words_at(kind: inspect.Type, path: str) -> list[str] | None:
    """The words that a closed set at `path` of `kind` allows."""
    steps = re.findall(r"[^.\[\]]+|\[[^\]]*\]", path)
    kinds = [kind]
    for step in [*steps, None]:
        kinds = [inner for k in kinds for inner in (k.types if isinstance(k, inspect.UnionType) else (k,))]
        if step is None:
            break
        reached: list[inspect.Type] = []
        for k in kinds:
            if isinstance(k, inspect.Metadata):
                k = k.type
            if isinstance(k, inspect.StructType):
                reached += [f.type for f in k.fields if f.encode_name == step]
            elif isinstance(k, inspect.ListType):
                reached.append(k.item_type)
            elif isinstance(k, inspect.DictType):
                reached.append(k.value_type)
        kinds = reached
    words = [str(v) for k in kinds if isinstance(k, inspect.LiteralType) for v in k.values]
    return words or None
