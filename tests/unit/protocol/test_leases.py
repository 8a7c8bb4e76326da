"""Lease tokens: only what was sealed for this run and this subject opens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from towline.protocol.leases import LeaseToken, seal, unseal

SECRET = b"s" * 32
TOKEN = LeaseToken(7, "0123456789abcdef", 1)


def test_what_was_sealed_opens() -> None:
    assert unseal(SECRET, "run_1", "bot", seal(SECRET, "run_1", "bot", TOKEN)) == TOKEN


@pytest.mark.parametrize(
    ("secret", "run", "subject"),
    [(b"t" * 32, "run_1", "bot"), (SECRET, "run_2", "bot"), (SECRET, "run_1", "eve"), (SECRET, "run_1\0bot", "")],
)
def test_for_nobody_else(secret: bytes, run: str, subject: str) -> None:
    assert unseal(secret, run, subject, seal(SECRET, "run_1", "bot", TOKEN)) is None


@given(st.integers(min_value=0), st.sampled_from("0123456789abcdef.x\n"))
def test_no_character_may_change(at: int, character: str) -> None:
    text = seal(SECRET, "run_1", "bot", TOKEN)
    at %= len(text)
    changed = text[:at] + character + text[at + 1 :]
    assert changed == text or unseal(SECRET, "run_1", "bot", changed) is None


@given(st.text(max_size=100))
def test_nonsense_opens_nothing(text: str) -> None:
    assert unseal(SECRET, "run_1", "bot", text) is None
