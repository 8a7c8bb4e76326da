"""The waiting helpers come back at once, and say what they waited for when they give up."""

import pytest

from tests.support.waiting import wait_until, wait_until_sync


async def test_it_returns_what_the_predicate_returned() -> None:
    answers = iter([None, 0, "", "found"])
    assert await wait_until(lambda: next(answers), "an answer") == "found"

    async def later() -> int:
        return 7

    assert await wait_until(later, "a number") == 7
    numbers = iter([0, 0, 3])
    assert wait_until_sync(lambda: next(numbers), "a number") == 3


async def test_it_says_what_it_waited_for() -> None:
    with pytest.raises(AssertionError, match=r"waited .* for the moon; the last answer was \[\]"):
        await wait_until(list, "the moon", timeout_s=0)
    with pytest.raises(AssertionError, match="for the sun; the last answer was False"):
        wait_until_sync(lambda: False, "the sun", timeout_s=0)
