"""Leaving: spread over the window, closed in that order, done in time."""

import asyncio
import random

import pytest

from towline.gateway import drain
from towline.gateway.drain import Farewell


def plan(count: int, **more: int) -> list[Farewell]:
    given = {"at_least_ms": 10_000, "reconnects_per_s": 500, "within_ms": 10_000, **more}
    return drain.plan(count, draw=random.Random(1).randint, **given)


def test_nobody_waits_when_nobody_is_there() -> None:
    assert plan(0) == []


def test_one_is_closed_at_once() -> None:
    (turn,) = plan(1)
    assert turn.after_ms == 0
    assert 0 <= turn.retry_ms <= 10_000


@pytest.mark.parametrize("count", [10, 500, 5_000, 50_000])
def test_no_second_sees_more_than_twice_the_planned_reconnects(count: int) -> None:
    turns = plan(count)
    window_ms = max(10_000, count * 1000 // 500)
    assert all(0 <= turn.retry_ms <= window_ms for turn in turns)
    assert max(turn.retry_ms for turn in turns) > window_ms / 2
    seconds = [0] * (window_ms // 1000 + 20)
    for turn in turns:
        seconds[(turn.after_ms + turn.retry_ms) // 1000] += 1
    assert max(seconds) <= 2 * 500


def test_closes_come_in_the_order_of_return_no_faster_than_planned() -> None:
    turns = plan(2_000)
    assert [turn.retry_ms for turn in turns] == sorted(turn.retry_ms for turn in turns)
    assert [turn.after_ms for turn in turns] == [2 * n for n in range(2_000)]


def test_the_plan_fits_the_time_whatever_the_number() -> None:
    assert max(turn.after_ms for turn in plan(50_000)) <= 8_000


async def test_one_who_does_not_take_it_holds_up_no_other() -> None:

    said: list[str] = []
    stuck = asyncio.Event()

    async def say(peer: str, retry_ms: int) -> None:
        if peer == "stuck":
            await stuck.wait()
        said.append(peer)
        if len(said) == 2:
            stuck.set()

    await drain.follow([Farewell(0, 1), Farewell(0, 2), Farewell(1, 3)], ["stuck", "a", "b"], say)
    assert said == ["a", "b", "stuck"]
