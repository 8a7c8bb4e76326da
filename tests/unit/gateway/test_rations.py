"""Rations: gateways on one bucket allow together what one would, and go on alone when it does not answer."""

import asyncio
from typing import Any

import pytest

from towline.gateway import rations
from towline.gateway.limits import BURST_S, Allowances, Limiter, Who
from towline.gateway.rations import ALONE_S, Rations
from towline.protocol.store.api import StoreUnavailable
from towline.protocol.store.rates import Taken

ANA, BEN = Who("ana", "192.0.2.1"), Who("ben", "192.0.2.2")


class Bucket:
    """A bucket that never fills by itself, and counts who asks."""

    def __init__(self, **has: int) -> None:
        self.has = has
        self.calls = 0
        self.fault: BaseException | None = None
        self.answers = asyncio.Event()
        self.answers.set()

    async def __call__(self, rate: str, whom: str, **asked: Any) -> Taken:
        self.calls += 1
        await self.answers.wait()
        if self.fault is not None:
            raise self.fault
        left = self.has.setdefault(whom, int(asked["per_s"] * asked["burst_s"]))
        taken = min(asked["most"], max(left, asked["least"] if asked["forced"] else 0))
        if taken < asked["least"]:
            return Taken(0, 500)
        self.has[whom] = left - taken
        return Taken(taken, max(0, taken - left))


class Lab:
    """Two gateways with one clock and one bucket."""

    def __init__(self, bucket: Bucket, **allowances: int) -> None:
        self.now_s = 100.0
        allowed = Allowances(**{"commands_per_s": 128, **allowances})
        self.gateways = [Rations(allowed, lambda: self.now_s, bucket) for _ in range(2)]
        self.alone = Limiter(allowed, lambda: self.now_s)

    async def allowed(self, who: Who, times: int, *, of: int | None = None) -> int:
        """How many of so many commands are allowed, in turn by each gateway or all by one."""
        count = 0
        for n in range(times):
            gateway = self.gateways[n % 2 if of is None else of]
            count += not await gateway.take("commands", who)
        return count


async def test_two_gateways_allow_together_what_one_would() -> None:
    bucket = Bucket()
    lab = Lab(bucket)
    assert await lab.allowed(ANA, 1000) == 128 * BURST_S
    assert await lab.allowed(BEN, 1) == 1


async def test_who_asks_often_costs_the_store_few_calls_and_who_was_refused_none() -> None:
    bucket = Bucket()
    lab = Lab(bucket, address_factor=0)
    assert await lab.allowed(ANA, 512, of=0) == 512
    assert bucket.calls <= 20
    assert await lab.gateways[1].take("commands", ANA) == 0.5
    calls = bucket.calls
    assert await lab.allowed(ANA, 100) == 0
    assert bucket.calls == calls
    lab.now_s += 0.6
    bucket.has["user:ana"] = 1
    assert await lab.allowed(ANA, 1, of=1) == 1


async def test_at_once_they_ask_once() -> None:
    bucket = Bucket()
    lab = Lab(bucket, address_factor=0)
    await lab.allowed(ANA, 100, of=0)
    lab.gateways[0]._stocks["commands", "user:ana"].left = 0
    calls = bucket.calls
    assert await asyncio.gather(*(lab.gateways[0].take("commands", ANA) for _ in range(40))) == [0.0] * 40
    assert bucket.calls == calls + 1


async def test_what_an_address_is_refused_costs_the_subject_nothing() -> None:
    bucket = Bucket(**{"address:192.0.2.1": 0})
    lab = Lab(bucket)
    assert await lab.allowed(ANA, 5, of=0) == 0
    stock = lab.gateways[0]._stocks["commands", "user:ana"]
    assert bucket.has["user:ana"] + stock.left == 128 * BURST_S


async def test_what_was_read_is_owed_whoever_asks() -> None:
    lab = Lab(Bucket(), replay_bytes_per_s=1000, address_factor=0)
    assert await lab.gateways[0].owe("replay_bytes", ANA, 4000) == 0
    assert await lab.gateways[1].owe("replay_bytes", ANA, 1000) == 1.0


@pytest.mark.parametrize("fault", [StoreUnavailable("away"), "slow"])
async def test_without_the_store_each_gateway_holds_its_own_limits(fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rations, "PATIENCE_S", 0.01)
    bucket = Bucket()
    lab = Lab(bucket)
    if fault == "slow":
        bucket.answers.clear()
    else:
        bucket.fault = fault
    assert await lab.allowed(ANA, 600, of=0) == 128 * BURST_S
    assert bucket.calls == 1
    bucket.fault = None
    bucket.answers.set()
    lab.now_s += ALONE_S
    assert await lab.allowed(ANA, 1, of=0) == 1
    assert bucket.calls > 1


async def test_a_fault_of_ours_is_not_taken_for_a_store_that_is_away() -> None:
    bucket = Bucket()
    bucket.fault = TypeError("ours")
    with pytest.raises(TypeError):
        await Lab(bucket).allowed(ANA, 1)


async def test_callers_are_forgotten_in_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rations, "_KEPT", 10)
    lab = Lab(Bucket())
    for n in range(100):
        await lab.gateways[0].take("commands", Who(f"subject {n}"))
    assert len(lab.gateways[0]._stocks) == 10
