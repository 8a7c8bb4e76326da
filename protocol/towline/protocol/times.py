"""Times on the wire: RFC 3339 UTC with milliseconds, from the store's clock and nobody else's."""

from datetime import UTC, datetime, timedelta


def to_wire(at_ms: int) -> str:
    """The wire form of a time in milliseconds since 1970."""
    moment = datetime.fromtimestamp(at_ms // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{at_ms % 1000:03d}Z"


def from_wire(text: str) -> int:
    """Milliseconds since 1970. Raises `ValueError` if `text` is no RFC 3339 time with a zone."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone; write it as 2026-01-31T09:30:00.000Z")
    return round((moment - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(milliseconds=1))
