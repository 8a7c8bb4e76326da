"""The doors: each limit plus one gets its defined answer, each level of pressure sheds what it should and no more."""

from collections.abc import Awaitable, Callable

import pytest

from towline.gateway.admission import Admission, Shed, Turned
from towline.gateway.limits import BURST_S, Allowances, Who
from towline.gateway.pressure import Level, Pressure
from towline.protocol.closecodes import CloseCode
from towline.protocol.errors import ProblemError

ANA, BEN = Who("ana", "192.0.2.1"), Who("ben", "192.0.2.2")


class Lab:
    """An admission whose clock moves only when it is told, and whose pressure is what is set."""

    def __init__(self, level: Level = Level.NOTHING, **allowances: int) -> None:
        self.now_s = 0.0
        self.is_leaving = False
        self.pressure = Pressure(1)
        self.pressure.level = level
        self.admission = Admission(
            Allowances(**allowances),
            self.pressure,
            is_leaving=lambda: self.is_leaving,
            clock_s=self._tick,
        )

    def _tick(self) -> float:
        self.now_s += 0.0001
        return self.now_s


async def refusal(call: Callable[[], Awaitable[None]]) -> str | None:
    try:
        await call()
    except ProblemError as error:
        return error.problem.code if error.problem.retry_after_ms else "without a time to come back"
    return None


@pytest.mark.parametrize("what", ["subscribe", "create", "command"])
async def test_one_more_than_the_rate_is_rate_limited_and_a_neighbour_is_not(what: str) -> None:
    admission = Lab(subscriptions_per_s=1, creates_per_s=1, commands_per_s=1).admission
    calls: dict[str, Callable[[Who], Awaitable[None]]] = {
        "subscribe": admission.subscribe,
        "create": admission.create,
        "command": lambda who: admission.command(who, "signal"),
    }
    answers = [await refusal(lambda: calls[what](ANA)) for _ in range(int(BURST_S) + 1)]
    assert answers == [None] * int(BURST_S) + ["rate_limited"]
    assert await refusal(lambda: calls[what](BEN)) is None


@pytest.mark.parametrize("level", list(Level))
async def test_each_level_sheds_in_order(level: Level) -> None:
    admission = Lab(level).admission
    assert (await refusal(lambda: admission.subscribe(ANA)) == "overloaded") is (level >= Level.SUBSCRIPTIONS)
    assert (await refusal(lambda: admission.create(ANA)) == "overloaded") is (level >= Level.CREATES)
    assert admission.drops_deltas is (level >= Level.DELTAS)
    assert (await refusal(lambda: admission.command(ANA, "signal")) == "overloaded") is (level >= Level.COMMANDS)
    assert await refusal(lambda: admission.command(ANA, "cancel")) is None


async def test_a_replay_under_pressure_waits_then_is_shed() -> None:
    lab = Lab(Level.REPLAYS)
    lab.admission._clock_s = lambda: lab.now_s
    await Lab().admission.replay(ANA, 0)  # nobody waits when nothing presses

    def late() -> float:
        lab.now_s += 6
        return lab.now_s

    lab.admission._clock_s = late
    with pytest.raises(Shed) as shed:
        await lab.admission.replay(ANA, 0)
    assert shed.value.retry_ms > 0


async def test_who_leaves_takes_no_new_work() -> None:
    lab = Lab()
    lab.is_leaving = True
    assert await refusal(lambda: lab.admission.create(ANA)) == "overloaded"
    assert await refusal(lambda: lab.admission.command(ANA, "signal")) is None
    with pytest.raises(ProblemError) as refused:
        lab.admission.claim()
    assert refused.value.problem.retry_after_ms


def test_sockets_over_the_process_bound_come_back_later() -> None:
    admission = Lab(sockets=1).admission
    with admission.seat("192.0.2.1"):
        with pytest.raises(Turned) as turned, admission.seat("192.0.2.2"):
            pass
        assert turned.value.code is CloseCode.OVERLOADED
        assert turned.value.retry_ms
    with admission.seat("192.0.2.2"):
        pass


def test_a_herd_is_let_in_bit_by_bit() -> None:
    lab = Lab(accepts_per_s=1)
    for _ in range(int(BURST_S)):
        with lab.admission.seat(None):
            pass
    with pytest.raises(Turned) as turned, lab.admission.seat(None):
        pass
    assert turned.value.code is CloseCode.OVERLOADED
    assert turned.value.retry_ms
    lab.now_s += 1
    with lab.admission.seat(None):
        pass


def test_sockets_without_a_credential_are_few_per_address() -> None:
    admission = Lab(handshakes_per_address=2).admission
    with admission.seat("192.0.2.1") as first, admission.seat("192.0.2.1"):
        with pytest.raises(Turned) as turned, admission.seat("192.0.2.1"):
            pass
        assert turned.value.code is CloseCode.RATE_LIMITED
        with admission.seat("192.0.2.2"):
            pass  # a neighbour
        first.welcome("ana")
        with admission.seat("192.0.2.1"):
            pass  # who has a credential is not counted


def test_sockets_of_a_subject_are_bounded_and_given_back() -> None:
    admission = Lab(sockets_per_subject=1).admission
    with admission.seat(None) as first, admission.seat(None) as second:
        first.welcome("ana")
        first.welcome("ana")  # a newer credential is no other socket
        with pytest.raises(Turned) as turned:
            second.welcome("ana")
        assert turned.value.code is CloseCode.TOO_MANY_CONNECTIONS
        second.welcome("ben")
        with pytest.raises(Turned) as turned, admission.stream("ana"):
            pass
        assert turned.value.code is CloseCode.RATE_LIMITED
    with admission.stream("ana"):
        pass
    assert (admission._sockets, admission._handshakes, len(admission._subjects)) == (0, 0, 0)


def test_frames_of_a_socket_are_bounded() -> None:
    admission = Lab(frames_per_s=1).admission
    with admission.seat(None) as seat, admission.seat(None) as neighbour:
        for _ in range(int(BURST_S)):
            seat.count_frame()
        with pytest.raises(Turned) as turned:
            seat.count_frame()
        assert turned.value.code is CloseCode.RATE_LIMITED
        neighbour.count_frame()


async def test_requests_at_once_are_bounded() -> None:
    admission = Lab(requests=1).admission
    with admission.request():

        async def another() -> None:
            with admission.request():
                pass

        assert await refusal(another) == "overloaded"
    assert await refusal(another) is None
