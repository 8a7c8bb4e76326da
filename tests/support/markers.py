"""A secret in every field: data of the vocabulary whose every leaf is a text or a number that stands nowhere else.

Promises that `found` tells, of whatever bytes a caller was sent, which of them are in it, and that `Marks` knows where
each was put. What has a closed set of values (a status, a kind, a yes or no) cannot carry one.
"""

import itertools
import re
from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct

from tests.support.vocabulary import TIMES, leaf
from towline.protocol.times import to_wire

_TEXT: Final = re.compile(rb"mark[0-9]{6}z|77[0-9]{8}|2031-[0-9T:.-]+Z")
_FIRST_MS: Final = 1_925_000_000_000
"""In 2031: a time that no clock here tells."""


class Place(Struct, frozen=True):
    """Where a marker was put: by which entry of the test's table, at which path of its data."""

    entry: str
    path: str


class Marks:
    """Fills with markers, for one entry after the other: set `entry` before."""

    def __init__(self) -> None:
        self.entry = ""
        self.places: dict[str, Place] = {}
        self._numbers = itertools.count()

    def text(self, path: str) -> str:
        number = next(self._numbers)
        made = to_wire(_FIRST_MS + number * 1001) if leaf(path) in TIMES else f"mark{number:06d}z"
        return self._put(made, path)

    def number(self, path: str) -> int:
        return int(self._put(f"77{next(self._numbers):08d}", path))

    def json(self, path: str) -> Any:
        return {self.text(path): [self.number(path), {"in": self.text(path)}]}

    def pick(self, path: str, options: Sequence[Any]) -> Any:
        wanted = {"on.0.kind": "signal", "on.1.kind": "timer", "blocker.kind": "agent", "kind": "text"}.get(path)
        return wanted if wanted in options else options[-1]

    def count(self, path: str) -> int:
        return 2 if path == "on" else 1

    def has(self, path: str) -> bool:
        return True

    def forget(self, entry: str, *members: str) -> None:
        """These members of an entry were replaced."""
        for marker, place in tuple(self.places.items()):
            if place.entry == entry and place.path.split(".")[0] in members:
                del self.places[marker]

    def _put(self, marker: str, path: str) -> str:
        self.places[marker] = Place(self.entry, path)
        return marker


def found(sent: bytes) -> set[str]:
    """The markers in what a caller was sent, of whoever made them."""
    return {each.decode() for each in _TEXT.findall(sent)}
