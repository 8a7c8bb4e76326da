"""Times in envelopes: the store's, exact on odd dates, and never backwards within one log."""

from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.lab import Lab, note
from towline.protocol.store import api
from towline.protocol.store.redis import RedisStore
from towline.protocol.store.scripts import _LUA
from towline.protocol.times import from_wire, to_wire

ODD = [
    "1999-12-31T23:59:59.999Z", "2000-02-29T12:00:00.000Z", "2000-03-01T00:00:00.000Z", "2024-02-28T23:59:59.999Z",
    "2024-02-29T00:00:00.000Z", "2024-12-31T23:59:59.999Z", "2025-01-01T00:00:00.000Z", "2025-02-28T23:59:59.999Z",
    "2025-03-01T00:00:00.007Z", "2038-01-19T03:14:08.000Z", "2096-02-29T00:00:00.000Z", "2100-02-28T23:59:59.999Z",
    "2100-03-01T00:00:00.000Z", "2400-02-29T00:00:00.000Z", "9999-12-31T23:59:59.999Z", "1970-01-01T00:00:00.000Z",
]  # fmt: skip
PROGRAM = (_LUA / "lib" / "clock.lua").read_text() + "\nreturn wire_time(tonumber(ARGV[1]))"


async def wire_time(lab: Lab, at_ms: int) -> str:
    answer: bytes = await lab.raw.eval(PROGRAM, 0, str(at_ms))
    return answer.decode()


@pytest.mark.parametrize("text", ODD)
async def test_odd_dates(lab: Lab, text: str) -> None:
    assert await wire_time(lab, from_wire(text)) == text


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at_ms=st.integers(0, 253_402_300_799_999))
async def test_any_time_is_written_as_we_write_it(lab: Lab, at_ms: int) -> None:
    assert await wire_time(lab, at_ms) == to_wire(at_ms)


@pytest.mark.parametrize("text", ["2024-02-29T23:59:59.000Z", "2099-12-31T23:59:59.000Z", "2028-02-29T00:00:01.000Z"])
async def test_an_event_carries_the_stores_time(lab: Lab, text: str) -> None:
    await lab.pass_ms(from_wire(text) - lab.store.now_ms())
    await lab.create()
    ts = (await lab.log())[0].event().ts
    assert ts[:16] == text[:16] or ts[:10] > text[:10]
    assert from_wire(ts) <= lab.store.now_ms()
    assert abs(from_wire(ts) - from_wire(text)) < 60_000


async def test_times_never_run_backwards_within_a_log(lab: Lab) -> None:
    lease = await lab.held()
    await lab.store.commit(lab.commit(lease, 1, note()))
    await lab.pass_ms(-7_200_000)
    await lab.store.commit(lab.commit(lease, 2, note(), note()))
    await lab.accept()
    times = [entry.event().ts for entry in await lab.log()]
    assert times == sorted(times)
    assert times[2] == times[1]
    await lab.pass_ms(7_300_000)
    await lab.store.commit(lab.commit(lease, 3, note()))
    assert (await lab.log())[-1].event().ts > times[-1]


async def test_the_clock_moves_only_in_a_store_made_for_tests(lab: Lab) -> None:
    client = lab.raw
    await client.hset("tl:store", "for_tests", "0")
    other = await RedisStore.connect(lab.store.url, for_tests=True)
    try:
        with pytest.raises(api.TestOnly):
            await other.set_clock_offset(5)
    finally:
        await other.aclose()


async def test_the_estimate_is_never_behind_the_stores_clock(lab: Lab) -> None:
    for _ in range(200):
        seconds, micros = await lab.raw.time()
        before_ms = seconds * 1000 + micros // 1000
        assert lab.store.now_ms() >= before_ms
    assert lab.store.now_ms() <= int(datetime.now(UTC).timestamp() * 1000) + 1000
