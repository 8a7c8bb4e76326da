"""Durations as a person types them: `90s`, `15m`, `12h`, `7d`, `500ms`; a bare number is seconds.

Promises a positive number of seconds or a `ValueError` whose message says how to write one.
"""

import re
from typing import Final

_UNIT_S: Final = {"ms": 0.001, "s": 1, "": 1, "m": 60, "h": 3_600, "d": 86_400}

LONGEST_S: Final = 10 * 365 * 86_400
"""Ten years: what is longer is a slip of the keyboard, and would overflow a date."""


def parse_duration(text: str) -> float:
    """Seconds. Raises `ValueError` for what is no duration, is not above zero, or is above ten years."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|)", text.strip(), re.ASCII)
    if match is None:
        raise ValueError(f"{text!r} is no duration; write a number and a unit, such as 90s, 15m, 12h or 7d")
    seconds = float(match[1]) * _UNIT_S[match[2]]
    if not 0 < seconds <= LONGEST_S:
        raise ValueError(f"{text!r} is not between 0 and ten years")
    return seconds


def in_words(seconds: float) -> str:
    """A duration for people, in the largest unit that divides it: 43200 → `12 h`."""
    for unit in ("d", "h", "m"):
        if seconds >= _UNIT_S[unit] and seconds % _UNIT_S[unit] == 0:
            return f"{seconds / _UNIT_S[unit]:g} {unit}"
    return f"{seconds:g} s"
