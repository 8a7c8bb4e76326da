"""Cursors: whatever is sent becomes one or is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from towline.protocol.cursor import START, BadCursor, Cursor, parse
from towline.protocol.limits import MAX_SEQ

ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.binary(), st.lists(st.text()), st.text(),
    st.from_regex(r"\A[0-9]{0,18}-?[0-9]{0,12}\Z"),
)  # fmt: skip


@given(ANYTHING)
def test_anything_is_a_cursor_or_a_bad_one(value: object) -> None:
    try:
        found = parse(value)
    except BadCursor:
        return
    assert isinstance(value, str)
    assert str(found) == value
    assert 0 <= found.seq <= MAX_SEQ
    assert found.tag is None or 0 <= found.tag < 2**32


@given(st.integers(1, MAX_SEQ), st.integers(0, 2**32 - 1))
def test_what_was_produced_comes_back(seq: int, tag: int) -> None:
    assert parse(str(Cursor(seq, tag))) == Cursor(seq, tag)


def test_the_start_and_what_people_type() -> None:
    assert parse("0") == START
    assert parse("41") == Cursor(41, None)


@pytest.mark.parametrize(
    "text",
    [
        "", "latest", "-1", "+1", "01", "1-", "-", "1-01", "0-5", "1.0", "1e3", " 1", "1\n", "1-2-3", "٣", "1-٣",
        str(MAX_SEQ + 1), f"1-{2**32}", "9" * 400,
    ],
)  # fmt: skip
def test_everything_else_is_refused(text: str) -> None:
    with pytest.raises(BadCursor):
        parse(text)
