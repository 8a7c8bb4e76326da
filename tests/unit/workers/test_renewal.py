"""The renewal thread: what it renews, what it reports, and when it must not renew any more."""

import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.waiting import wait_until, wait_until_sync
from towline.protocol.store import api
from towline.workers.renewal import HeldLease, Renewal


class Answers:
    """Stands for the store: answers as told and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Sequence[api.Lease]] = []
        self.lost: set[str] = set()
        self.is_away = False
        self.is_closed = False

    async def renew(self, leases: Sequence[api.Lease], *, ttl_ms: int) -> Sequence[api.Renewal]:
        self.asked.append(leases)
        if self.is_away:
            raise api.StoreUnavailable
        return [
            api.Renewal(lease.run, "fenced") if lease.run in self.lost else api.Renewal(lease.run, None, input_seq=9)
            for lease in leases
        ]

    async def aclose(self) -> None:
        self.is_closed = True


class Held:
    """One lease and what was told about it."""

    def __init__(self, run: str, ends_in_s: float = 60) -> None:
        self.renewals: list[api.Renewal] = []
        self.lost: list[float] = []
        self.lease = HeldLease(
            run,
            api.Fence(1, "n"),
            ends_s=time.monotonic() + ends_in_s,
            on_renewal=self.renewals.append,
            on_lost=lambda: self.lost.append(time.monotonic()),
        )


@asynccontextmanager
async def renewing(answers: Answers, **options: Any) -> AsyncIterator[Renewal]:
    async def connect() -> Answers:
        return answers

    given = {"lease_ms": 60_000, "renew_ms": 30, "max_loop_stall_s": 60.0, **options}
    renewal = Renewal(connect, **given)
    renewal.start()
    try:
        yield renewal
    finally:
        await renewal.stop()
    assert answers.is_closed or not answers.asked


async def test_each_renewal_brings_back_what_the_store_knows() -> None:
    answers, held = Answers(), Held("a")
    before_s = held.lease.ends_s
    async with renewing(answers) as renewal:
        held.lease.step = "Look"
        renewal.hold(held.lease)
        await wait_until(lambda: len(held.renewals) >= 2, "two renewals")
        renewal.let_go(held.lease)
    assert held.renewals[0].input_seq == 9
    assert held.lease.ends_s > before_s
    assert answers.asked[0][0] == api.Lease("a", api.Fence(1, "n"), "Look")
    assert held.lost == []


async def test_a_lease_that_is_anothers_is_told_once_and_renewed_no_more() -> None:
    answers, held = Answers(), Held("a")
    answers.lost.add("a")
    async with renewing(answers) as renewal:
        renewal.hold(held.lease)
        await wait_until(lambda: held.lost, "the loss")
        other = Held("b")
        renewal.hold(other.lease)
        await wait_until(lambda: len(other.renewals) >= 2, "the other's renewals")
    assert len(held.lost) == 1


async def test_a_lease_that_cannot_be_renewed_is_lost_before_it_ends() -> None:
    answers, held = Answers(), Held("a", ends_in_s=0.8)
    answers.is_away = True
    async with renewing(answers) as renewal:
        renewal.hold(held.lease)
        await wait_until(lambda: held.lost, "the loss")
    assert held.lost[0] < held.lease.ends_s


async def test_a_loop_that_stands_still_too_long_keeps_no_lease_and_is_named(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING, "towline.worker")
    monkeypatch.setattr("towline.workers.renewal.WARN_STALL_S", 0.3)
    answers, held = Answers(), Held("a")
    async with renewing(answers, max_loop_stall_s=0.6) as renewal:
        renewal.hold(held.lease)
        await wait_until(lambda: len(held.renewals) >= 2, "renewals")
        _stand_still(answers)
        stalled = len(answers.asked)
        await wait_until(lambda: len(answers.asked) > stalled, "renewals to go on once the loop moves")
    named = [record.message for record in caplog.records if "stands still" in record.message]
    assert len(named) == 1
    assert "_stand_still" in named[0]


def _stand_still(answers: Answers) -> None:
    """Block the loop until nothing was renewed for a while."""
    quiet_since_s, count = time.monotonic(), len(answers.asked)

    def is_quiet() -> bool:
        nonlocal quiet_since_s, count
        if len(answers.asked) != count:
            quiet_since_s, count = time.monotonic(), len(answers.asked)
        return time.monotonic() - quiet_since_s > 0.4

    wait_until_sync(is_quiet, "renewals to stop")


async def test_a_run_whose_own_code_does_not_rest_is_renewed_no_more() -> None:
    answers, stuck, fine = Answers(), Held("stuck"), Held("fine")
    async with renewing(answers, max_loop_stall_s=5.0) as renewal:
        stuck.lease.busy_since_s = time.monotonic() - 6
        renewal.hold(stuck.lease)
        renewal.hold(fine.lease)
        await wait_until(lambda: len(fine.renewals) >= 2, "renewals")
    assert stuck.renewals == []


async def test_whatever_goes_wrong_in_the_thread_the_watch_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Answers):
        async def renew(self, leases: Sequence[api.Lease], *, ttl_ms: int) -> Sequence[api.Renewal]:
            self.asked.append(leases)
            raise ZeroDivisionError

    answers, held = Broken(), Held("a", ends_in_s=0.7)
    async with renewing(answers) as renewal:
        renewal.hold(held.lease)
        await wait_until(lambda: held.lost, "the loss")
    assert "leases not renewed" in caplog.text
