"""What is too large for the log goes to payload storage before the commit, and comes back in history replay.

Promises that an entry names a payload only after its bytes are durable. A large private part is replaced by a
pointer that only workers read; a large public member by the event's `ref`. Leaves what may spill to `events`.
"""

from typing import Any, Final

import msgspec
from msgspec.structs import replace

from towline.protocol.codec import Entry, NewEntry, TooLarge, encode_envelope
from towline.protocol.limits import PRIVATE_BYTES
from towline.protocol.store.payloads import RunPayloads

_POINTER: Final = b'{"$payload":"'


def pointer_to(sha256: str) -> bytes:
    """The private part that stands for a payload with this hash."""
    return _POINTER + sha256.encode() + b'"}'


async def spill(entry: NewEntry, payloads: RunPayloads) -> NewEntry:
    """`entry` as it fits into the log. Raises `TooLarge` for one with no member that may move."""
    if entry.private is not None and len(entry.private) > PRIVATE_BYTES:
        entry = replace(entry, private=pointer_to(await payloads.put(entry.private)))
    try:
        encode_envelope(entry)
    except TooLarge as error:
        if error.member is None:
            raise
        value: Any = getattr(entry.data, error.member)
        sha256 = await payloads.put(msgspec.json.encode(value))
        entry = replace(entry, data=replace(entry.data, **{error.member: None}), ref=f"pay_{sha256}")
    return entry


def is_spilled(entry: Entry) -> bool:
    """Whether the private part of `entry` is elsewhere: `unspill` brings it back."""
    return entry.private is not None and entry.private.startswith(_POINTER)


async def unspill(entry: Entry, payloads: RunPayloads) -> Entry:
    """`entry` with its whole private part. Raises `MissingPayload`."""
    if entry.private is None or not is_spilled(entry):
        return entry
    sha256 = msgspec.json.decode(entry.private)["$payload"]
    return msgspec.structs.replace(entry, private=await payloads.read(sha256))
