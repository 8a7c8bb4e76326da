"""Rates and places: refused at the bound and told when to come back, without any neighbour noticing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from towline.gateway.limits import BURST_S, Allowances, Limiter, Places, Rates, Who, address_in


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


ANA = Who("ana", "192.0.2.1")


def limiter(clock: Clock, **more: int) -> Limiter:
    return Limiter(Allowances(**{"commands_per_s": 2, **more}), clock)


def test_one_more_than_the_burst_is_refused_and_told_when() -> None:
    clock = Clock()
    limits = limiter(clock)
    burst = int(2 * BURST_S)
    assert [limits.take("commands", ANA) for _ in range(burst)] == [0] * burst
    assert limits.take("commands", ANA) == pytest.approx(0.5)
    clock.now_s += 0.5
    assert limits.take("commands", ANA) == 0
    assert limits.take("commands", ANA) > 0


def test_a_neighbour_and_another_kind_do_not_notice() -> None:
    limits = limiter(Clock())
    while not limits.take("commands", ANA):
        pass
    assert limits.take("commands", Who("ben", "192.0.2.2")) == 0
    assert limits.take("subscriptions", ANA) == 0


def test_an_address_gets_several_subjects_worth_and_no_more() -> None:
    limits = limiter(Clock(), address_factor=3)
    taken = 0
    for name in range(10):
        while not limits.take("commands", Who(f"subject {name}", "192.0.2.1")):
            taken += 1
    assert taken == 3 * 2 * BURST_S
    assert limits.take("commands", Who("new", "192.0.2.2")) == 0
    assert limits.take("commands", Who("new", None)) == 0


def test_without_a_factor_addresses_have_no_limit() -> None:
    limits = limiter(Clock(), address_factor=0)
    assert all(limits.take("commands", Who(f"subject {name}", "192.0.2.1")) == 0 for name in range(1000))


def test_a_refused_call_costs_nothing() -> None:
    clock = Clock()
    limits = limiter(clock, address_factor=1)
    while not limits.take("commands", ANA):
        pass
    other = Who("ben", ANA.address)
    for _ in range(100):
        assert limits.take("commands", other) > 0  # the address is spent, the subject is not
    assert limits.take("commands", Who("ben", "192.0.2.9")) == 0


def test_what_is_owed_slows() -> None:
    clock = Clock()
    limits = limiter(clock, replay_bytes_per_s=100)
    assert limits.owe("replay_bytes", ANA, int(100 * BURST_S)) == 0
    assert limits.owe("replay_bytes", ANA, 100) == pytest.approx(1)
    assert limits.owe("replay_bytes", Who("ben", "192.0.2.2"), 100) == 0


def test_memory_is_bounded_and_forgets_who_was_away_longest() -> None:
    rates = Rates(1, Clock(), kept=3)
    for key in ("a", "b", "c"):
        rates.spend(key, 100)
    rates.spend("a")
    rates.spend("d", 100)
    assert len(rates) == 3
    assert rates.wait_s("b") == 0
    assert min(rates.wait_s(key) for key in ("a", "c", "d")) > 0


@given(st.lists(st.floats(0, 2), max_size=200))
def test_never_more_than_the_rate_and_one_burst(pauses: list[float]) -> None:
    clock, taken = Clock(), 0
    rates, start_s = Rates(3, clock), clock.now_s
    for pause_s in pauses:
        clock.now_s += pause_s
        while not rates.wait_s("a"):
            rates.spend("a")
            taken += 1
        assert taken <= 3 * (clock.now_s - start_s + BURST_S) + 1e-6


def test_places_are_taken_and_given_back() -> None:
    places = Places(2)
    assert [places.take("a") for _ in range(3)] == [True, True, False]
    assert places.take("b")
    places.give_back("a")
    assert places.take("a")
    for key in ("a", "a", "b"):
        places.give_back(key)
    assert len(places) == 0


@pytest.mark.parametrize(
    ("client", "address"),
    [
        (("192.0.2.1", 5), "192.0.2.1"),
        (["::ffff:192.0.2.1", 5], "192.0.2.1"),
        (("2001:db8:1:2:3:4:5:6", 5), "2001:db8:1:2::/64"),
        (("fe80::1%eth0", 5), "fe80::/64"),
        (("testclient", 5), "testclient"),
        (("", 0), None),
        (None, None),
    ],
)
def test_addresses_are_counted_by_who_has_them(client: object, address: str | None) -> None:
    assert address_in(client) == address
