"""Between typed values and the bytes of the log.

Promises that what `encode` lets through is an event of the vocabulary, at most 32 KiB, of the data its type
asks for; anything else is a `ProblemError` or `TooLarge` before a seq exists, so no seq is ever burnt. The
envelope is stored without its `seq`, `ts` and `cause`: the script that appends knows them and splices them in
front. Decoding trusts the log: its entries were checked when they were written.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct, field

from towline.protocol.cursor import Cursor
from towline.protocol.errors import problem
from towline.protocol.events import EVENTS, Actor, Audience, Event
from towline.protocol.limits import EVENT_BYTES

_json: Final = msgspec.json.Encoder()
_SPLICED_BYTES: Final = 80
"""Room for `{"seq":…,"ts":"…","cause":…,` which the script adds."""


class TooLarge(ValueError):
    """An event over 32 KiB whose type has no member left to spill."""

    def __init__(self, type_: str, size_bytes: int, member: str | None) -> None:
        super().__init__(f"{type_} takes {size_bytes} bytes, the limit is {EVENT_BYTES}")
        self.type = type_
        self.size_bytes = size_bytes
        self.member = member


class EntryMeta(Struct, frozen=True, omit_defaults=True):
    """The private stamp of an entry: who wrote it, in which commit, on what it relied. Field `m` of the log.

    `epoch` and `commit` are absent on entries that no lease holder wrote. `seen` is the newest input that had
    been fed to the machine when the commit was decided; `now_ms` is the store time taken before the commit's
    first result was fed. `key` is the step that decided the entry; history replay matches by it. `is_input`
    marks what the machine may read.
    """

    audience: Audience = field(name="a", default="viewer")
    epoch: int | None = field(name="f", default=None)
    commit: int | None = field(name="c", default=None)
    seen: str | None = field(name="s", default=None)
    now_ms: int | None = field(name="n", default=None)
    key: str | None = field(name="k", default=None)
    is_input: bool = field(name="i", default=False)


class NewEntry(Struct, frozen=True):
    """One entry on its way into a log, before it has a place there.

    `cause` is a seq; `cause_index` instead names the entry of the same call (0 is its first) that caused this
    one. `private` is what only history replay reads; at most 64 KiB.
    """

    type: str
    actor: Actor
    data: Any
    ref: str | None = None
    audience: Audience | None = None
    cause: int | None = None
    cause_index: int | None = None
    key: str | None = None
    is_input: bool = False
    private: bytes | None = None


class Entry(Struct, frozen=True):
    """One entry as it stands in a log. `raw` is the envelope's exact bytes, which gateways pass through."""

    seq: int
    tag: int
    raw: bytes
    meta: EntryMeta
    private: bytes | None = None

    @property
    def cursor(self) -> Cursor:
        return Cursor(self.seq, self.tag)

    def event(self) -> Event:
        """The decoded envelope."""
        return decode_event(self.raw)


_events: Final = msgspec.json.Decoder(Event)
_meta: Final = msgspec.json.Decoder(EntryMeta)


def encode_envelope(entry: NewEntry) -> bytes:
    """The envelope after its spliced members: `"type":…}` without the opening brace.

    Raises `ProblemError` (`bad_request`) for a type outside the vocabulary or data that is not of its type,
    and `TooLarge` for an event over 32 KiB.
    """
    row = EVENTS.get(entry.type)
    if row is None:
        raise problem("bad_request", f"The log has no event type {entry.type!r}.", field="type", known=sorted(EVENTS))
    try:
        data = entry.data if isinstance(entry.data, row.data) else msgspec.convert(entry.data, row.data)
        body = _json.encode(
            {
                "type": entry.type,
                "actor": entry.actor,
                "data": data,
                "ref": entry.ref,
                "audience": _audience_of(entry),
            }
        )
        # A struct made in code was never checked, and a log that cannot be read again is lost.
        msgspec.convert(_events.decode(b'{"seq":1,"ts":"",' + body[1:]).data, row.data)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise problem("bad_request", f"Not the data of {entry.type}: {error}", field="data") from None
    if len(body) + _SPLICED_BYTES > EVENT_BYTES:
        raise TooLarge(entry.type, len(body) + _SPLICED_BYTES, row.spill)
    return body[1:]


def _audience_of(entry: NewEntry) -> Audience:
    if entry.audience is not None:
        return entry.audience
    if entry.type == "message.completed":  # the one type whose default depends on its data
        kind = entry.data["kind"] if isinstance(entry.data, dict) else entry.data.kind
        return "operator" if kind == "reasoning" else "collaborator"
    return EVENTS[entry.type].audience


def meta_of(entry: NewEntry, **stamp: Any) -> EntryMeta:
    """The stamp of `entry`; `stamp` gives `epoch`, `commit`, `seen` and `now_ms` for a lease holder's."""
    return EntryMeta(audience=_audience_of(entry), key=entry.key, is_input=entry.is_input, **stamp)


def encode_meta(meta: EntryMeta) -> bytes:
    """Field `m` of an entry."""
    return _json.encode(meta)


def decode_event(raw: bytes | msgspec.Raw) -> Event:
    """The envelope in `raw`."""
    return _events.decode(raw)


_TYPE_MARK: Final = b'"type":"'


def type_of(raw: bytes) -> str:
    """The `type` of an envelope without decoding it: it stands before any text that a producer wrote."""
    start = raw.index(_TYPE_MARK) + len(_TYPE_MARK)
    return raw[start : raw.index(b'"', start)].decode()


def decode_entry(entry_id: bytes | str, raw: bytes, meta: bytes, private: bytes | None = None) -> Entry:
    """The entry with this id in its log."""
    seq, _, tag = (entry_id if isinstance(entry_id, str) else entry_id.decode()).partition("-")
    return Entry(int(seq), int(tag), raw, _meta.decode(meta), private)


def decode_entries(rows: Iterable[tuple[bytes, Sequence[bytes]]]) -> list[Entry]:
    """The entries of a log as the store answers them: id and fields, in the order in which they were appended."""
    found, decode = list[Entry](), _meta.decode
    for entry_id, fields in rows:
        seq, _, tag = entry_id.partition(b"-")
        found.append(Entry(int(seq), int(tag), fields[1], decode(fields[3])))
    return found
