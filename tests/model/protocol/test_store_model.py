"""Random walks of the store against its oracle; and, with one safeguard removed, walks that must be caught."""

import random
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.model.protocol.store_judge import walk_and_judge
from tests.model.protocol.store_walk import Patch
from tests.support.lab import Lab, open_lab
from tests.support.server import StoreServer
from tests.support.soak import SOAK
from towline.protocol.cursor import Cursor

WALKS = 5000 if SOAK else 200
STEPS = 60
REGRESSIONS = (65, 771263938)
"""Seeds that once failed."""

MUTATIONS: dict[str, list[tuple[str, str]]] = {
    "the fence is not compared": [("if not same or r[6] == '0' then", "if r[6] == '0' then")],
    "a lease given back still writes": [("if not same or r[6] == '0' then", "if not same then")],
    "a repeated number writes again": [
        ("if same and r[3] == fmt(q.commit) and", "if false and"), ("tonumber(r[3]) + 1 ~= q.commit or", ""),
    ],
    "any number is the next": [("tonumber(r[3]) + 1 ~= q.commit or", "")],
    "the tag of what was seen is not compared": [
        ("redis.call('XRANGE', log, q.seen, q.seen)", "redis.call('XRANGE', log, string.match(q.seen, '%d+'), '+')"),
    ],
    "an unseen input does not keep it awake": [("or 0) > seen", "or 0) > seen + 1000")],
    "a sealed log is written to": [("if r[5] == '1' then\n    return {'CLOSED'}", "if false then\n return {'CLOSED'}")],
    "a sealed run accepts": [("if r[2] == '1' then\n  return {'CLOSED', r[1]}", "if false then\n  return {}")],
    "an id is accepted twice": [("if stored then", "if false then")],
    "what was relied on is not compared": [("~= rely[2] then", "~= rely[2] and false then")],
    "nobody is hinted again": [("hint(run, commands, leases, q.run, now, q.claim_ms)\nreturn {'OK', fmt(now)}",
                                "redis.call('ZADD', leases, fmt(now + q.claim_ms), q.run)\nreturn {'OK', fmt(now)}")],
    "an input wakes nobody": [("wake(run, commands, leases, q.run, now, q.claim_ms)", "")],
    "a timer fires again": [("redis.call('ZREM', timers, q.member)\nredis.call('HSET'", "redis.call('HSET'")],
    "a live lease is taken": [("if lease_until > now then", "if false then")],
    "a claim keeps the nonce": [("r[5] == q.nonce and r[15]", "false")],
    "the log is not what was prepared on": [("if last ~= fmt(q.prepared_at) then", "if false then")],
    "a dead closer keeps its run": [
        ("redis.call('HDEL', run, 'closing')\nend", "redis.call('ZREM', leases, q.run)\nreturn {'PARKED'}\nend")
    ],
    "a run starts before its time": [("if tonumber(due) > now then", "if false then")],
    "a run that may not start is woken": [("or r[5] then\n    return", "then\n    return")],
    "the end of a run lets nobody of its thread go": [
        ("wake(heir_run, heir_commands, leases, heir, now, claim_ms)", ""),
    ],
    "whom the end lets go is not compared": [("if heir ~= q.heir then", "if false then")],
    "a run of a busy thread goes at once": [("redis.call('HSET', run, 'held_back', 'thread')", "")],
    "a lease from before a jump back keeps its run": [("if by > latest then", "if false then")],
}  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    """A server of their own: walks flush it, and leave a frozen clock behind."""
    with StoreServer(tmp_path_factory.mktemp("walks")) as server:
        yield server


@pytest.fixture
async def lab(server: StoreServer) -> AsyncIterator[Lab]:
    async with open_lab(server.url) as lab:
        yield lab


@pytest.mark.parametrize("seed", REGRESSIONS)
async def test_seeds_that_once_failed(lab: Lab, seed: int) -> None:
    await walk_and_judge(lab, seed, STEPS)


async def test_walks_do_what_the_oracle_says(lab: Lab) -> None:
    words: dict[str, int] = {}
    first = random.SystemRandom().randrange(10**9)
    for seed in range(first, first + WALKS):
        for word, times in (await walk_and_judge(lab, seed, STEPS)).oracle.words.items():
            words[word] = words.get(word, 0) + times
    # Not vacuous: each refusal, repeat and takeover really happened.
    wanted = {
        "create_run": "OK EXISTS", "accept_command": "OK DUPLICATE CLOSED CHANGED",
        "claim_run": "OK HELD PARKED CLOSED", "commit": "OK FENCED CLOSED DIVERGED",
        "release_run": "OK FENCED UNSEEN CLOSED", "close_run": "OK FENCED UNSEEN CHANGED", "fire_timer": "OK CLOSED",
        "rehint_run": "OK DUPLICATE PARKED", "start_run": "OK HELD",
    }  # fmt: skip
    missing = {f"{s}:{w}" for s, ws in wanted.items() for w in ws.split() if f"{s}:{w}" not in words}
    assert missing == set(), f"walks from seed {first} never saw these"


def removing(changes: list[tuple[str, str]]) -> tuple[Patch, list[str]]:
    """The patch that makes these changes, and a list that says where it did."""
    done: list[str] = []

    def patch(name: str, text: str) -> str:
        for old, new in changes:
            if old in text:
                text = text.replace(old, new)
                done.append(name)
        return text

    return patch, done


@pytest.mark.parametrize("name", MUTATIONS)
async def test_a_store_without_this_safeguard_is_caught(lab: Lab, name: str) -> None:
    patch, done = removing(MUTATIONS[name])
    for seed in range(300):
        try:
            await walk_and_judge(lab, seed, STEPS, patch)
        except AssertionError:
            assert done, "the safeguard is written otherwise now; change the mutation"
            return
        assert done or seed < 50, "the safeguard is written otherwise now; change the mutation"
    pytest.fail(f"300 walks did not notice that {name}")


async def test_a_reader_that_compares_no_tags_is_caught(lab: Lab) -> None:
    store: Any = lab.store
    real = store.read_log

    async def careless(run: str, after: Cursor, **members: Any) -> Any:
        return await real(run, Cursor(after.seq), **members)

    store.read_log = careless
    with pytest.raises(AssertionError, match="seed 0"):
        await walk_and_judge(lab, 0, STEPS)
