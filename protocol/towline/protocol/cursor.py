"""The cursor: the resume point of a reader, seq + tag.

Promises that whatever a person or a program sends as a cursor becomes a `Cursor` or a `BadCursor`, nothing
else. A cursor is the id of a log entry; its tag proves that two histories are the same up to it. Leaves the
comparison with a log to `subscription` and to `store`.
"""

import re
from typing import Final

import msgspec

from towline.protocol.limits import MAX_SEQ

_CURSOR: Final = re.compile(r"(0|[1-9][0-9]{0,15})(?:-(0|[1-9][0-9]{0,9}))?\Z", re.ASCII)
_MAX_TAG: Final = 2**32 - 1


class BadCursor(ValueError):
    """Not a cursor: neither `<seq>-<tag>`, nor `0`, a bare seq or `latest`."""


class Cursor(msgspec.Struct, frozen=True):
    """Position just after the entry `seq`; before the first event it is `seq` 0.

    `tag` is None where nothing proves the position: `0`, or a bare seq that a person typed.
    """

    seq: int
    tag: int | None = None

    def __str__(self) -> str:
        return str(self.seq) if self.tag is None else f"{self.seq}-{self.tag}"


START: Final = Cursor(0)
"""The position before the first event."""

LATEST: Final = "latest"
"""What a client sends to be placed at the head."""


def parse(text: object) -> Cursor:
    """The cursor that `text` (a produced cursor, `"0"` or a bare seq) stands for.

    Raises `BadCursor` for anything else, also for a number where a string belongs; `latest` is the caller's
    to handle, since only the log knows its head.
    """
    if not isinstance(text, str) or not (match := _CURSOR.match(text)):
        raise BadCursor("a cursor is '0', 'latest' or what the server sent as cursor, such as '41-1541450194'")
    seq, tag = int(match[1]), match[2]
    if seq > MAX_SEQ or (tag is not None and (seq == 0 or int(tag) > _MAX_TAG)):
        raise BadCursor("no log has such a position; send the cursor as the server sent it")
    return Cursor(seq, None if tag is None else int(tag))
