"""A connection that many share: nobody ever gets the answer of another, whatever the peer does."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError
from redis.exceptions import TimeoutError as RedisTimeoutError

from tests.support.store_peer import Command, Line, Peer, bulk, echo
from tests.support.waiting import wait_until
from towline.protocol.store.lane import Call, Lane


@pytest.fixture
async def peer(tmp_path: Path) -> AsyncIterator[Peer]:
    async with Peer(tmp_path / "s").listening() as peer:
        yield peer


@pytest.fixture
async def lane(peer: Peer) -> AsyncIterator[Lane]:
    lane = peer.lane()
    yield lane
    await lane.aclose()


async def answer_of(lane: Lane, text: str) -> bool:
    """Whether the lane brings what was asked; an answer of another is a failure at once."""
    [answer] = await lane.ask(echo(text))
    assert answer == text.encode()
    return True


async def all_answered(lane: Lane, count: int) -> None:
    assert await asyncio.gather(*(answer_of(lane, f"{number}") for number in range(count))) == [True] * count


def holding(peer: Peer) -> list[tuple[Line, Command]]:
    """Lets the peer keep every command to itself; returns where they gather."""
    held: list[tuple[Line, Command]] = []
    peer.answer = lambda line, command: held.append((line, command))
    return held


def release(held: list[tuple[Line, Command]]) -> None:
    for line, command in held:
        line.write(bulk(command[-1]))
    held.clear()


async def test_each_caller_gets_its_own_answer_and_all_share_few_packets(peer: Peer, lane: Lane) -> None:
    await all_answered(lane, 1)
    before = peer.lines[0].packets
    await all_answered(lane, 500)
    assert len(peer.lines) == 1
    assert peer.lines[0].packets - before < 10
    assert lane.in_flight == 0


async def test_answers_may_arrive_in_crumbs(peer: Peer, lane: Lane) -> None:
    def crumbs(line: Line, command: Command) -> None:
        for byte in bulk(command[-1]):
            line.write(bytes([byte]))

    peer.answer = crumbs
    await all_answered(lane, 50)


async def test_what_was_not_answered_is_sent_again_in_its_order(peer: Peer, lane: Lane) -> None:
    def lossy(line: Line, command: Command) -> None:
        if len(peer.lines) < 3 and len(line.commands) > 5:
            line.hang_up()  # after it was received: it may have been done
        elif len(line.commands) <= 5 or len(peer.lines) == 3:
            line.write(bulk(command[-1]))

    peer.answer = lossy
    await all_answered(lane, 20)
    first, second, third = [[int(command[-1]) for command in line.commands] for line in peer.lines]
    assert (first, second, third) == (list(range(20)), list(range(5, 20)), list(range(10, 20)))


async def test_half_an_answer_is_no_answer(peer: Peer, lane: Lane) -> None:
    def half(line: Line, command: Command) -> None:
        whole = bulk(command[-1])
        if len(peer.lines) == 1:
            line.write(whole[: len(whole) // 2])
            line.hang_up()
        else:
            line.write(whole)

    peer.answer = half
    await answer_of(lane, "a text that is cut in the middle")
    assert len(peer.lines) == 2


async def test_a_half_answered_batch_is_asked_again_as_a_whole(peer: Peer, lane: Lane) -> None:
    def half(line: Line, command: Command) -> None:
        if len(peer.lines) == 1 and len(line.commands) == 3:
            line.hang_up()
        else:
            line.write(bulk(command[-1]))

    peer.answer = half
    batch = b"".join(echo(number) for number in range(5))
    answers, _ = await asyncio.gather(lane.ask(batch, 5), answer_of(lane, "beside"))
    assert answers == [b"0", b"1", b"2", b"3", b"4"]
    assert [command[-1] for command in peer.lines[1].commands] == [b"0", b"1", b"2", b"3", b"4", b"beside"]


async def test_a_call_that_is_lost_again_and_again_fails(peer: Peer, lane: Lane) -> None:
    peer.answer = lambda line, command: line.hang_up()
    with pytest.raises(RedisConnectionError):
        await answer_of(lane, "x")
    assert len(peer.lines) == 4
    peer.answer = lambda line, command: line.write(bulk(command[-1]))
    await answer_of(lane, "y")


async def test_calls_that_failed_hold_no_place(peer: Peer) -> None:
    lane = peer.lane(max_calls=2)
    peer.answer = lambda line, command: line.hang_up()
    ends = await asyncio.gather(*(answer_of(lane, f"{number}") for number in range(2)), return_exceptions=True)
    assert [type(end) for end in ends] == [RedisConnectionError] * 2
    peer.answer = lambda line, command: line.write(bulk(command[-1]))
    await all_answered(lane, 10)
    assert (lane.in_flight, len(lane._unsent)) == (0, 0)
    await lane.aclose()


async def test_what_was_lost_goes_before_what_came_since(peer: Peer, lane: Lane) -> None:
    held = holding(peer)
    callers = [asyncio.create_task(answer_of(lane, f"{number}")) for number in range(3)]
    await wait_until(lambda: len(held) == 3, "the calls to arrive")
    take_back = lane._take_back

    def ask_and_take_back(loss: BaseException) -> None:
        later = Call(echo("later"), 1, callers[0].get_loop().time() + 60, callers[0].get_loop().create_future())
        lane._unsent.append(later)
        take_back(loss)

    lane._take_back = ask_and_take_back  # type: ignore[method-assign]
    held[0][0].hang_up()
    await wait_until(lambda: len(held) == 7, "all to be sent again")
    assert [command[-1] for _, command in held[3:]] == [b"0", b"1", b"2", b"later"]
    release(held[3:])
    assert await asyncio.gather(*callers) == [True] * 3


async def test_a_caller_that_gives_up_disturbs_nobody(peer: Peer, lane: Lane) -> None:
    held = holding(peer)
    callers = [asyncio.create_task(answer_of(lane, f"{number}")) for number in range(300)]
    await wait_until(lambda: len(held) == 300, "all calls to arrive")
    for caller in callers[::2]:
        caller.cancel()
    await asyncio.sleep(0)
    assert lane.in_flight == 300  # what was asked must be read
    release(held)
    assert await asyncio.gather(*callers[1::2]) == [True] * 150
    assert len(peer.lines) == 1
    assert lane.in_flight == 0


async def test_what_nobody_waits_for_is_not_written(peer: Peer, lane: Lane) -> None:
    await answer_of(lane, "first")
    given_up = asyncio.create_task(answer_of(lane, "given up"))
    asyncio.get_running_loop().call_soon(given_up.cancel)
    with pytest.raises(asyncio.CancelledError):
        await given_up
    await answer_of(lane, "last")
    assert [command[-1] for command in peer.commands] == [b"first", b"last"]


async def test_what_nobody_waits_for_is_not_sent_again(peer: Peer, lane: Lane) -> None:
    held = holding(peer)
    given_up = asyncio.create_task(answer_of(lane, "given up"))
    patient = asyncio.create_task(answer_of(lane, "patient"))
    await wait_until(lambda: len(held) == 2, "both calls to arrive")
    given_up.cancel()
    await asyncio.wait({given_up})
    held[0][0].hang_up()
    await wait_until(lambda: len(peer.lines) == 2 and len(held) == 3, "the second connection")
    assert [command[-1] for command in peer.lines[1].commands] == [b"patient"]
    release(held[2:])
    assert await patient
    assert lane.in_flight == 0


async def test_an_answer_that_comes_too_late_is_nobodys(peer: Peer) -> None:
    held = holding(peer)
    lane = peer.lane(timeout_s=0.5)
    with pytest.raises(RedisTimeoutError):
        await answer_of(lane, "slow")
    peer.answer = lambda line, command: line.write(bulk(command[-1]))
    later = asyncio.create_task(answer_of(lane, "quick"))
    await asyncio.sleep(0)
    release(held)
    with contextlib.suppress(RedisTimeoutError):  # on a machine that is busy for that long
        assert await later
    await wait_until(lambda: len(peer.lines) == 2, "the connection to be another one")
    await lane.aclose()


async def test_a_refusal_is_its_callers_alone(peer: Peer, lane: Lane) -> None:
    def refusing(line: Line, command: Command) -> None:
        line.write(b"-NOSCRIPT No matching script.\r\n" if command[-1] == b"7" else bulk(command[-1]))

    peer.answer = refusing
    answers = await asyncio.gather(*(lane.ask(echo(number)) for number in range(10)))
    assert [type(answer) for [answer] in answers] == [bytes] * 7 + [NoScriptError] + [bytes] * 2
    assert len(peer.lines) == 1


async def test_a_store_that_is_loading_is_asked_again(peer: Peer, lane: Lane) -> None:
    peer.answer = lambda line, command: line.write(
        bulk(command[-1]) if len(peer.lines) > 2 else b"-LOADING Redis is loading the dataset in memory\r\n"
    )
    await all_answered(lane, 5)
    assert len(peer.lines) == 3


async def test_no_more_calls_than_allowed_are_under_way(peer: Peer) -> None:
    lane = peer.lane(max_calls=10)
    held = holding(peer)
    callers = [asyncio.create_task(answer_of(lane, f"{number}")) for number in range(35)]
    for arrived in (10, 20, 30):
        await wait_until(lambda: len(held) == 10, "as many calls as there are places")
        assert (lane.in_flight, len(peer.commands)) == (10, arrived)
        for caller in callers[arrived - 10 : arrived : 3]:
            caller.cancel()  # a place is free when the answer was read, not before
        release(held)
    await wait_until(lambda: len(held) == 5, "the rest")
    release(held)
    ends = await asyncio.gather(*callers, return_exceptions=True)
    assert ends.count(True) + sum(isinstance(end, asyncio.CancelledError) for end in ends) == 35
    await lane.aclose()


async def test_waiting_for_a_place_ends_in_time(peer: Peer) -> None:
    held = holding(peer)
    lane = peer.lane(timeout_s=0.3, max_calls=1)
    ends = await asyncio.gather(answer_of(lane, "a"), answer_of(lane, "b"), return_exceptions=True)
    assert [type(end) for end in ends] == [RedisTimeoutError] * 2
    assert [command[-1] for _, command in held] == [b"a"]
    await lane.aclose()


async def test_something_that_nobody_asked_ends_the_connection(peer: Peer, lane: Lane) -> None:
    await answer_of(lane, "first")
    peer.lines[0].write(bulk(b"uninvited"))
    await wait_until(lambda: lane._reading is None, "the connection to be given up")
    await answer_of(lane, "second")
    assert len(peer.lines) == 2


async def test_nonsense_ends_the_connection(peer: Peer, lane: Lane) -> None:
    peer.answer = lambda line, command: line.write(b"?!\r\n" if len(peer.lines) == 1 else bulk(command[-1]))
    await all_answered(lane, 3)
    assert len(peer.lines) == 2


async def test_an_idle_connection_that_ended_is_replaced_on_demand(peer: Peer, lane: Lane) -> None:
    await answer_of(lane, "first")
    peer.lines[0].hang_up()
    await wait_until(lambda: lane._reading is None, "the loss to be seen")
    assert len(peer.lines) == 1
    await answer_of(lane, "second")
    assert len(peer.lines) == 2


async def test_nobody_there_is_said_and_the_next_call_tries_again(tmp_path: Path) -> None:
    peer = Peer(tmp_path / "s")
    lane = peer.lane()
    with pytest.raises(RedisConnectionError):
        await answer_of(lane, "x")
    async with peer.listening():
        await answer_of(lane, "y")
        await lane.aclose()


async def test_a_peer_that_does_not_greet_costs_no_more_than_the_time_of_a_call(tmp_path: Path) -> None:
    ended = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        ended.set()

    peer = Peer(tmp_path / "s")
    server = await asyncio.start_unix_server(silent, str(peer.path))
    lane = peer.lane(timeout_s=0.3)
    with pytest.raises(RedisTimeoutError):
        await answer_of(lane, "x")
    await asyncio.wait_for(ended.wait(), 10)  # it was left, not only the caller told
    server.close()
    await server.wait_closed()

    async def is_served() -> bool:
        with contextlib.suppress(RedisTimeoutError):
            return await answer_of(lane, "y")
        return False

    async with peer.listening():
        await wait_until(is_served, "the next peer to be asked")
        await lane.aclose()


async def test_closing_answers_who_waits(peer: Peer, lane: Lane) -> None:
    held = holding(peer)
    caller = asyncio.create_task(answer_of(lane, "x"))
    await wait_until(lambda: held, "the call to arrive")
    await lane.aclose()
    with pytest.raises(RedisConnectionError, match="closed"):
        await caller
    with pytest.raises(RedisConnectionError, match="closed"):
        await answer_of(lane, "y")


@pytest.mark.parametrize("seed", range(12))
async def test_no_wrong_answer_in_any_weather(peer: Peer, seed: int) -> None:
    chance = random.Random(seed)
    lane = peer.lane(max_calls=chance.choice([3, 50, 2000]))

    def weather(line: Line, command: Command) -> None:
        whole = bulk(command[-1])
        match chance.randrange(40):
            case 0:
                line.hang_up()
            case 1:
                line.write(whole[: chance.randrange(len(whole))])
                line.hang_up()
            case 2:
                line.write(whole)
                line.hang_up()
            case _:
                line.write(whole)

    async def caller(number: int) -> int:
        answered = 0
        for turn in range(20):
            asking = asyncio.create_task(answer_of(lane, f"{number}/{turn}"))
            if chance.random() < 0.3:
                for _ in range(chance.randrange(6)):
                    await asyncio.sleep(0)
                asking.cancel()
            with contextlib.suppress(RedisConnectionError, asyncio.CancelledError):
                answered += await asking
        return answered

    peer.answer = weather
    assert sum(await asyncio.gather(*(caller(number) for number in range(20)))) > 150
    assert len(peer.lines) > 3
    peer.answer = lambda line, command: line.write(bulk(command[-1]))
    await all_answered(lane, 5)
    assert lane.in_flight == 0
    await lane.aclose()
