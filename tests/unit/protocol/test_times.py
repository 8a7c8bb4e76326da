"""Times: milliseconds out, milliseconds back, nothing without a zone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from towline.protocol.times import from_wire, to_wire

YEAR_9999_MS = 253_402_300_799_999


@given(st.integers(0, YEAR_9999_MS))
def test_a_time_comes_back(at_ms: int) -> None:
    assert from_wire(to_wire(at_ms)) == at_ms


@given(st.integers(0, YEAR_9999_MS), st.integers(0, YEAR_9999_MS))
def test_text_sorts_as_time(a: int, b: int) -> None:
    assert (to_wire(a) < to_wire(b)) == (a < b)


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [
        ("1970-01-01T00:00:00.000Z", 0),
        ("2024-02-29T23:59:59.999Z", 1_709_251_199_999),
        ("2024-03-01T01:59:59.999+02:00", 1_709_251_199_999),
        ("2026-12-31T23:59:59Z", 1_798_761_599_000),
    ],
)
def test_known_times(text: str, at_ms: int) -> None:
    assert from_wire(text) == at_ms


@pytest.mark.parametrize(
    "text", ["", "now", "2026-01-31", "2026-01-31T09:30:00", "2026-02-30T00:00:00Z", "2026-01-31T24:61:00Z"]
)
def test_what_is_no_time_with_a_zone_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the words differ by what is wrong
        from_wire(text)
