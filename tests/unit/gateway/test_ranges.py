"""The Range header: what is asked, in bounded time, never more than there is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from towline.gateway.ranges import MOST, Unsatisfiable, wanted


@pytest.mark.parametrize(
    ("header", "size", "found"),
    [
        (None, 10, None),
        ("", 10, None),
        ("bytes=0-3", 10, [(0, 3)]),
        ("Bytes = 2-", 10, [(2, 9)]),
        ("bytes=-4", 10, [(6, 9)]),
        ("bytes=-99", 10, [(0, 9)]),
        ("bytes=0-0, 9-9", 10, [(0, 0), (9, 9)]),
        ("bytes=9-9,0-0", 10, [(9, 9), (0, 0)]),
        ("bytes=0-0,10-", 10, [(0, 0)]),
        ("bytes=0-5,5-6", 10, None),
        ("bytes=3-2", 10, None),
        ("bytes=-", 10, None),
        ("bytes=1-2,x", 10, None),
        ("bytes=٣-٤", 10, None),
        ("items=0-1", 10, None),
        ("bytes=" + "9" * 40 + "-", 10, None),
    ],
)
def test_what_is_asked(header: str | None, size: int, found: list[tuple[int, int]] | None) -> None:
    assert wanted(header, size) == found


@pytest.mark.parametrize("header", ["bytes=10-", "bytes=-0", "bytes=99-100", "bytes=" + "0-0," * MOST + "1-1"])
def test_what_cannot_be_satisfied(header: str) -> None:
    with pytest.raises(Unsatisfiable):
        wanted(header, 10)


def test_nothing_can_be_asked_of_no_bytes() -> None:
    for header in ("bytes=0-", "bytes=-1", "bytes=0-0"):
        with pytest.raises(Unsatisfiable):
            wanted(header, 0)


@given(st.text(alphabet="bytes=0123456789-, x", max_size=60), st.integers(0, 30))
def test_never_more_than_there_is(tail: str, size: int) -> None:
    try:
        found = wanted("bytes=" + tail, size)
    except Unsatisfiable:
        return
    if found is not None:
        taken = [at for first, last in found for at in range(first, last + 1)]
        assert len(taken) == len(set(taken)) > 0
        assert max(taken) < size
