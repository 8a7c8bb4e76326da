"""Between the store's values and what the scripts take and give.

Promises that no call exceeds 100 entries or 256 KB, and that each entry leaves with a fresh tag from the
operating system (a script's own random generator repeats after a restart, just where histories fork). Everything
is text: the server's MessagePack knows no binary type, and what we store is JSON.
"""

import secrets
from collections.abc import Sequence
from typing import Any

from towline.protocol.codec import EntryMeta, NewEntry, encode_envelope, encode_meta, meta_of
from towline.protocol.errors import problem
from towline.protocol.limits import PRIVATE_BYTES, SCRIPT_BYTES, SCRIPT_ENTRIES


def pack_entries(entries: Sequence[NewEntry], **stamp: Any) -> list[dict[str, Any]]:
    """The entries as `lib/append.lua` reads them. `stamp` as in `codec.meta_of`.

    Raises `ProblemError` for what is no event, `codec.TooLarge` for an event over its limit, and a `too_large`
    problem for a call that holds too much.
    """
    packed = []
    size_bytes = 0
    for entry in entries:
        envelope = encode_envelope(entry)
        private = entry.private or b""
        if len(private) > PRIVATE_BYTES:
            raise problem("too_large", f"The private part of {entry.type} must go to a payload.", limit=PRIVATE_BYTES)
        meta: EntryMeta = meta_of(entry, **stamp)
        size_bytes += len(envelope) + len(private)
        packed.append(
            {
                "t": str(secrets.randbits(32)),
                "e": envelope.decode(),
                "m": encode_meta(meta).decode(),
                "p": private.decode(),
                "c": -1 if entry.cause is None else entry.cause,
                "ci": -1 if entry.cause_index is None else entry.cause_index,
            }
        )
    if len(packed) > SCRIPT_ENTRIES or size_bytes > SCRIPT_BYTES:
        raise problem(
            "too_large",
            f"One step writes at most {SCRIPT_ENTRIES} events and {SCRIPT_BYTES} bytes; this is {len(packed)} "
            f"and {size_bytes}. Split it.",
            limit=SCRIPT_BYTES,
        )
    return packed
