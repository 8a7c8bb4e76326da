"""The `Range` header: which bytes of a payload a caller wants.

Promises an answer in time that grows with a bounded number of ranges only, however long the header is, and that what
is answered never adds up to more than the payload: ranges that overlap are answered whole, as the standard allows.
"""

import re
from itertools import pairwise
from typing import Final

MOST: Final = 16
"""How many ranges one request may ask for."""

_HEADER: Final = re.compile(r"[ \t]*bytes[ \t]*=(.*)\Z", re.ASCII | re.IGNORECASE | re.DOTALL)
_RANGE: Final = re.compile(r"[ \t]*(\d{0,18})-(\d{0,18})[ \t]*\Z", re.ASCII)


class Unsatisfiable(ValueError):
    """None of the bytes are there, or too many ranges are asked for."""


def wanted(header: str | None, size: int) -> list[tuple[int, int]] | None:
    """First and last byte of each range, in the order asked; None when all is to be answered.

    Raises `Unsatisfiable`.
    """
    match = _HEADER.match(header or "")
    if match is None:
        return None
    if match[1].count(",") >= MOST:
        raise Unsatisfiable(f"at most {MOST} ranges at a time")
    found: list[tuple[int, int]] = []
    for text in match[1].split(","):
        part = _RANGE.match(text)
        if part is None or not (part[1] or part[2]):
            return None  # not valid: as if it were not there
        if part[1] and part[2] and int(part[2]) < int(part[1]):
            return None
        first, last = _placed(part[1], part[2], size)
        if first <= last:
            found.append((first, last))
    if not found:
        raise Unsatisfiable("the bytes end before it")
    inner = sorted(found)
    if any(later[0] <= earlier[1] for earlier, later in pairwise(inner)):
        return None
    return found


def _placed(first: str, last: str, size: int) -> tuple[int, int]:
    if not first:
        return max(0, size - int(last)), size - 1
    return int(first), min(int(last), size - 1) if last else size - 1
