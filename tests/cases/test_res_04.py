"""Between the stored and the live there is no gap to fall into: what is appended there comes, once and in its place.

The symptom: the backlog was read first and the live feed joined afterwards. What was written in between stood in the
store and reached nobody; what came later was taken without noticing the hole.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final, Self

import pytest

from tests.cases.test_cmd_02 import PROPOSAL
from tests.support.gateway import AGENT, Hand, RunningGateway, running_gateway
from tests.support.soak import SOAK
from tests.support.transports import TRANSPORTS, follow
from tests.support.waiting import wait_until
from towline.gateway.limits import Allowances
from towline.protocol import event_data as d
from towline.protocol import requests
from towline.protocol.approvals import digest_of
from towline.protocol.codec import NewEntry
from towline.protocol.cursor import parse

CONNECTIONS: Final = 1_500 if SOAK else 100
AT_ONCE: Final = 60
LOOKED_AT: Final = {"socket": "load", "sse": "load", "pages": "heads"}
UNBOUND: Final = Allowances(subscriptions_per_s=100_000)


class Gap:
    """Holds who calls a method of `owner`, before or after it is done, until `release`."""

    def __init__(self, gateway: RunningGateway, where: str) -> None:
        self._when, self._name = where.split(" ")
        self._owner: Any = gateway.services.hub if self._name == "follow" else gateway.store
        self._call: Any = getattr(self._owner, self._name)
        self.held = 0
        self.release = asyncio.Event()
        self.passed = asyncio.Event()

    async def hold(self, count: int) -> None:
        """Returns once so many are held."""
        await wait_until(lambda: self.held >= count, f"{count} to come to {self._name}")

    async def _hold(self) -> None:
        self.held += 1
        await self.release.wait()

    async def _held(self, *args: Any, **more: Any) -> Any:
        if self._when == "before":
            await self._hold()
        answer = await self._call(*args, **more)
        if self._when == "after":
            await self._hold()
        self.passed.set()
        return answer

    def __enter__(self) -> Self:
        setattr(self._owner, self._name, self._held)
        return self

    def __exit__(self, *_: object) -> None:
        setattr(self._owner, self._name, self._call)


async def ask(hand: Hand) -> None:
    """Asks for an approval as a workflow does."""
    digest = digest_of("apr_1", PROPOSAL, [])
    data = d.ApprovalRequested(
        request="apr_1", title="Delete?", proposal=PROPOSAL, digest=digest, questions=[], deciders=["role:owner"],
        exclude=[], quorum=1,
    )  # fmt: skip
    await hand.write(NewEntry("approval.requested", AGENT, data), side=requests.side_fields(requests.opened(data)))


@pytest.mark.parametrize("has_notices", [True, False], ids=["heard", "unheard"])
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_what_is_appended_while_somebody_subscribes_comes(
    gateway: RunningGateway, transport: str, has_notices: bool
) -> None:
    if not has_notices:
        gateway.services.hub._hand_on = gateway.services.hub._gathered.clear  # type: ignore[method-assign]
    # Pages load no Run; beside the log, the sweep of heads is what they depend on.
    for where in ("before follow", "after follow", "after read_log", f"after {LOOKED_AT[transport]}"):
        run = await gateway.start()
        hand = await gateway.hold(run)
        await hand.note(count=98)
        with Gap(gateway, where) as gap:
            watching = asyncio.create_task(watch(gateway, transport, run, "90", upto=102))
            async with asyncio.timeout(20):
                await gap.hold(1)
                await ask(hand)
                gap.release.set()
                await gap.passed.wait()
                await hand.note()
                events = await watching
        assert [event["seq"] for event in events] == list(range(91, 103)), where
        assert events[10]["type"] == "approval.requested"


async def watch(gateway: RunningGateway, transport: str, run: str, after: str, *, upto: int) -> list[dict[str, Any]]:
    """The events behind `after` as they come, to the one with the seq `upto`."""
    events = list[dict[str, Any]]()
    async with aclosing(follow(gateway, transport, run, after)) as frames:
        async for frame in frames:
            assert frame["op"] in ("subscribed", "events", "live"), frame
            events += frame.get("events", [])
            if events and events[-1]["seq"] >= upto:
                break
    return events


@pytest.fixture
async def open_gateway(redis_url: str, tmp_path: Path) -> AsyncIterator[RunningGateway]:
    async with running_gateway(redis_url, tmp_path, limits=UNBOUND) as running:
        yield running


class Crowd:
    """Readers who come at random moments with cursors of random places, stay for some events and leave."""

    def __init__(self, gateway: RunningGateway, run: str, cursor: str) -> None:
        self._gateway = gateway
        self._run = run
        self._dice = random.Random(4)
        self._left = CONNECTIONS
        self.at = [cursor]
        """Cursors that the writer was given."""
        self.came: list[tuple[str, str, list[int]]] = []

    @property
    def is_over(self) -> bool:
        return len(self.came) == CONNECTIONS

    async def come(self) -> None:
        while self._left:
            self._left -= 1
            transport = TRANSPORTS[self._left % len(TRANSPORTS)]
            after = self._dice.choice(self.at[-50:])
            await asyncio.sleep(self._dice.random() / 100)
            stays_for = self._dice.randrange(1, 60)
            seqs, lives = list[int](), 0
            async with aclosing(follow(self._gateway, transport, self._run, after)) as frames:
                async for frame in frames:
                    assert frame["op"] in ("subscribed", "events", "live"), frame
                    assert frame.get("recovery", "resumed") == "resumed"
                    lives += frame["op"] == "live"
                    seqs += [event["seq"] for event in frame["events"]] if frame["op"] == "events" else []
                    if lives and len(seqs) >= stays_for:
                        break
            self.came.append((transport, after, seqs))


async def test_whoever_comes_while_much_is_written_misses_nothing(open_gateway: RunningGateway) -> None:
    run = await open_gateway.start()
    hand = await open_gateway.hold(run)
    crowd = Crowd(open_gateway, run, str(hand.seen))

    async def write() -> None:
        while not crowd.is_over:
            done = await hand.note(count=random.randrange(1, 8))
            crowd.at.append(str(done.cursor))
            await asyncio.sleep(0.004)

    async with asyncio.timeout(120), asyncio.TaskGroup() as group:
        group.create_task(write())
        for _ in range(AT_ONCE):
            group.create_task(crowd.come())
    for transport, after, seqs in crowd.came:
        first = parse(after).seq + 1
        assert seqs == list(range(first, first + len(seqs))), (transport, after)
    assert {transport for transport, _, _ in crowd.came} == set(TRANSPORTS)
