"""Durations as people type them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from towline.deploy.durations import LONGEST_S, in_words, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("15m", 900),
        ("12h", 43_200),
        ("7d", 604_800),
        ("45", 45),
        ("1.5h", 5_400),
        ("500ms", 0.5),
        (" 2m ", 120),
    ],
)
def test_a_number_and_a_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "h", "12 h", "-5m", "0", "0s", "1w", "1h30m", "1e3", "nan", "inf", "99999d", "١٢h", "0x10"]
)
def test_anything_else_is_refused_with_the_way_to_write_one(text: str) -> None:
    with pytest.raises(ValueError, match=r"such as 90s|between 0 and ten years"):
        parse_duration(text)


@given(st.text(max_size=12))
def test_any_text_gives_a_sensible_number_or_a_value_error(text: str) -> None:
    try:
        seconds = parse_duration(text)
    except ValueError:
        return
    assert 0 < seconds <= LONGEST_S


@pytest.mark.parametrize(
    ("seconds", "words"), [(43_200, "12 h"), (90, "90 s"), (120, "2 m"), (604_800, "7 d"), (0.5, "0.5 s")]
)
def test_in_words(seconds: float, words: str) -> None:
    assert in_words(seconds) == words
