"""Names of things on the wire: run ids, command ids, subjects, and the partition a run lives in.

Promises that a value which passed here cannot leave its hash tag, its key or its line: no braces, no
white space, no control characters. Leaves the layout of keys to `store.keys`.
"""

import binascii
import re
import secrets
from typing import Final, NewType

RunId = NewType("RunId", str)
"""Stable address of a run: `run_` + 26 Crockford characters (server-made) or the client's own name."""

_CROCKFORD: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_SERVER_RUN: Final = re.compile(r"run_[0-9A-HJKMNP-TV-Z]{26}\Z")
_UPLOAD: Final = re.compile(r"upl_[0-9A-HJKMNP-TV-Z]{26}\Z")
_CLIENT_RUN: Final = re.compile(r"(?!run_)[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")
_COMMAND: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}\Z")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}\Z")
_THREAD: Final = re.compile(r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]+\Z")
_SUBJECT: Final = re.compile(r"[^\s\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,256}\Z")

PARTITION_TAGS: Final = (
    10,
    18,
    123,
    3,
    29,
    21,
    32,
    112,
    69,
    61,
    72,
    152,
    50,
    58,
    163,
    43,
    11,
    19,
    122,
    2,
    28,
    20,
    33,
    113,
    68,
    60,
    73,
    153,
    51,
    59,
    162,
    42,
    12,
    132,
    9,
    1,
    103,
    23,
    30,
    38,
    143,
    63,
    70,
    78,
    52,
    172,
    49,
    41,
    13,
    133,
    8,
    0,
    102,
    22,
    31,
    39,
    142,
    62,
    71,
    79,
    53,
    173,
    48,
    40,
)
"""Number in the hash tag `{tl:NN}` of each of the 64 partitions.

Entry i is the smallest number whose slot falls in the i-th of 64 equal ranges of the 16,384 cluster slots, so
partitions spread evenly over any number of masters (numbering them 0 to 63 gives six masters 4/4/0/4/4/0).
A stored layout: never change it.
"""


def partition_of(run: str) -> int:
    """The partition (0 to 63) in which everything of `run` lives."""
    return binascii.crc_hqx(run.encode(), 0) % len(PARTITION_TAGS)


def tag_of(partition: int) -> str:
    """The hash tag of a partition without its braces, such as `tl:07`."""
    return f"tl:{PARTITION_TAGS[partition]:02d}"


def random_id(prefix: str) -> str:
    """`prefix_` + 26 Crockford characters: 130 bits from the operating system."""
    drawn = secrets.randbits(130)
    return prefix + "_" + "".join([_CROCKFORD[drawn >> shift & 31] for shift in range(0, 130, 5)])


def new_run_id(partition: int | None = None) -> RunId:
    """A fresh server-made run id; with `partition`, one that falls there (a child beside its parent)."""
    while True:
        run = random_id("run")
        if partition is None or partition_of(run) == partition:
            return RunId(run)


def derived_run_id(digest: bytes) -> RunId:
    """The server-made run id that stands for a digest of at least 17 bytes: same digest, same id."""
    number = int.from_bytes(digest[:17], "big")
    text = []
    for _ in range(26):
        text.append(_CROCKFORD[number & 31])
        number >>= 5
    return RunId("run_" + "".join(text))


def is_run_id(text: str) -> bool:
    """Whether `text` may address a run, server-made or client-made."""
    return bool(_SERVER_RUN.match(text) or _CLIENT_RUN.match(text))


def is_client_run_id(text: str) -> bool:
    """Whether a client may choose `text` for a new run (`run_…` is the server's)."""
    return bool(_CLIENT_RUN.match(text))


def is_upload_ref(text: str) -> bool:
    """Whether `text` may name an upload."""
    return bool(_UPLOAD.match(text))


def is_command_id(text: str) -> bool:
    """Whether `text` may be a command id or an Idempotency-Key."""
    return bool(_COMMAND.match(text))


def is_name(text: str) -> bool:
    """Whether `text` may name a workflow, an activity, a signal or a queue."""
    return bool(_NAME.match(text))


def is_thread(text: str) -> bool:
    """Whether `text` may name a thread."""
    return bool(_THREAD.match(text))


def is_subject(text: str) -> bool:
    """Whether `text` may be the `sub` of a credential."""
    return bool(_SUBJECT.match(text))
