"""Pressure: entered when it lasts, left when it is over, and shed in one order."""

import pytest

from towline.gateway.pressure import BUFFERED_SHARE, LAG_MS, STORE_MS, Level, Pressure, Sample

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
