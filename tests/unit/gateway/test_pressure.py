"""Pressure: entered when it lasts, left when it is over, and shed in one order."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from towline.gateway.pressure import BUFFERED_SHARE, LAG_MS, STORE_MS, Gauge, Level, Pressure, Sample
from towline.protocol.store.api import StoreUnavailable

BYTES = 1_000_000


def pressed(sample: Sample, times: int = 3) -> Pressure:
    pressure = Pressure(BYTES)
    for _ in range(times):
        pressure.receive(sample)
    return pressure


@pytest.mark.parametrize("level", [level for level in Level if level])
def test_each_measure_reaches_each_level(level: Level) -> None:
    n = level - 1
    for sample in (
        Sample(lag_ms=LAG_MS[n]),
        Sample(store_ms=STORE_MS[n]),
        Sample(buffered_bytes=int(BUFFERED_SHARE[n] * BYTES)),
    ):
        pressure = pressed(sample)
        assert pressure.level is level
        assert [what for what in Level if what and pressure.sheds(what)] == [
            what for what in Level if 0 < what <= level
        ]


def test_the_order_is_that_of_the_contract() -> None:
    assert [level.name for level in sorted(Level)] == [
        *("NOTHING", "REPLAYS", "SUBSCRIPTIONS", "CREATES", "DELTAS", "COMMANDS")
    ]


def test_just_below_is_calm() -> None:
    calm = Sample(LAG_MS[0] - 1, int(BUFFERED_SHARE[0] * BYTES) - 1, STORE_MS[0] - 1)
    assert pressed(calm, times=20).level is Level.NOTHING


def test_one_long_call_is_no_pressure() -> None:
    pressure = Pressure(BYTES)
    for n in range(50):
        pressure.receive(Sample(lag_ms=10_000 if n % 3 else 0))
        assert pressure.level is Level.NOTHING


def test_it_is_left_after_a_longer_calm_and_not_before() -> None:
    pressure = pressed(Sample(lag_ms=LAG_MS[4]))
    for _ in range(7):
        assert pressure.receive(Sample()) is Level.COMMANDS
    assert pressure.receive(Sample()) is Level.NOTHING


def test_the_worst_measure_decides() -> None:
    assert pressed(Sample(LAG_MS[0], BYTES, STORE_MS[1])).level is Level.COMMANDS


def gauge(ask_store: Callable[[], Awaitable[object]], samples: list[Sample]) -> tuple[Gauge, Pressure]:
    pressure = Pressure(100)
    return Gauge(
        pressure, ask_store=ask_store, buffered_bytes=lambda: 42, on_sample=samples.append, every_s=0.001
    ), pressure


async def test_the_gauge_measures_the_loop_the_store_and_the_sockets() -> None:
    async def slow() -> None:
        await asyncio.sleep(0.02)

    measuring, _ = gauge(slow, [])
    asyncio.get_running_loop().call_soon(time.sleep, 0.05)  # something holds the loop up
    sample = await measuring.measure()
    assert sample.lag_ms >= 40
    assert sample.store_ms >= 20
    assert sample.buffered_bytes == 42


async def test_a_store_that_is_away_is_no_pressure() -> None:
    async def away() -> None:
        await asyncio.sleep(0.01)
        raise StoreUnavailable("away")

    measuring, _ = gauge(away, [])
    assert (await measuring.measure()).store_ms == 0


async def test_the_gauge_goes_on_until_it_is_cancelled_and_says_when_the_level_changes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    samples: list[Sample] = []
    done = asyncio.Event()

    async def at_once() -> None:
        if len(samples) > 10:
            done.set()

    measuring, pressure = gauge(at_once, samples)
    pressure._buffered = (10.0, 20.0, 30.0, 40.0, 50.0)
    task = asyncio.create_task(measuring.run())
    async with asyncio.timeout(20):
        await done.wait()
    task.cancel()
    await asyncio.wait([task])
    assert pressure.level is Level.DELTAS
    assert "now shedding DELTAS" in caplog.text
