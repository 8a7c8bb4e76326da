"""Values that a workflow publishes for queries: what stands in the store and what a reader gets.

Promises one text per name, written in the commit of the turn that published it; there is no event, since a query
reads and never tells a story. Who may read it is its audience. Leaves the write to the workers, the read to the
gateway.
"""

from typing import Any, Final

import msgspec
from msgspec import Struct

from towline.protocol.events import Audience
from towline.protocol.ids import is_name
from towline.protocol.limits import KIB

PUBLISHED_BYTES: Final = 64 * KIB
"""Longest value, as JSON; what is longer is an artifact."""


class PublishedValue(Struct, frozen=True):
    """The newest value under a name. `at` is the store's time of the commit."""

    value: msgspec.Raw
    audience: Audience
    at: str

    def to_wire(self, name: str) -> dict[str, Any]:
        """As `GET …/queries/{name}` answers it."""
        return {"name": name, "value": self.value, "audience": self.audience, "published_at": self.at}


def field_of(name: str) -> str:
    """The field of a run's side hash that holds what is published under `name`."""
    return f"p|{name}"


def encode(published: PublishedValue) -> str:
    """The text of a value as the store keeps it."""
    return msgspec.json.encode(published).decode()


def decode(text: str) -> PublishedValue:
    """The value in such a text."""
    return msgspec.json.decode(text, type=PublishedValue)


def check(name: str, value: bytes) -> None:
    """Raises `ValueError` for a name or a value (as JSON) that cannot be published."""
    if not is_name(name):
        raise ValueError(f"{name!r} is no name for a query: letters, digits, '_', '.' and '-'")
    if len(value) > PUBLISHED_BYTES:
        raise ValueError(f"{name!r} has {len(value)} bytes, the limit is {PUBLISHED_BYTES}; keep it as an artifact")
