"""At every cut of a run of 200 events, over every transport, in every role: what was shown and what came later is it.

At each length of the log a reader of each transport comes, with the cursor of then or of a little before, some with a
limit, and is killed when it was told where it stands and nothing else. Many come back while more is written and are cut
off again; all come back for the rest. What each was shown first, folded with what came later, must be the Run as it is
shown in the end; and the events that it got must be the log's, byte for byte.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.folding import Holding, is_hidden, shown
from tests.support.gateway import AGENT, Hand, RunningGateway, running_gateway, token
from tests.support.lab import approval
from tests.support.readers import READERS, Frame, Reader
from tests.support.sharing import share_of
from tests.support.soak import SOAK
from tests.support.vocabulary import Dice, data_for
from towline.gateway.limits import Allowances
from towline.protocol.codec import NewEntry
from towline.protocol.cursor import START
from towline.protocol.events import EVENTS, TERMINAL, Audience
from towline.protocol.run import fold_all

pytestmark = pytest.mark.store

EVENTS_IN_ALL: Final = 200
ROLES: Final = ("operator", "viewer", "owner", "named", "collaborator", "share")
LATER: Final = sorted(EVENTS.keys() - TERMINAL - {"run.created"})
NARROWED: Final = {"plan.proposed", "plan.revised", "plan.step", "progress.noted", "checkpoint.saved", "tool.finished"}
"""Types that a producer may give another audience here: none that says when something begins and ends."""
AUDIENCES: Final[tuple[Audience | None, ...]] = (None, "viewer", "operator")
REQUESTS: Final = {type_ for type_ in EVENTS if type_.startswith(("approval.", "input.", "child."))}
STAYS: Final = 4
"""How many events a reader takes before it is cut off for good."""
UNBOUND: Final = Allowances(subscriptions_per_s=100_000)


@pytest.fixture
async def gateway(redis_url: str, tmp_path: Path) -> AsyncIterator[RunningGateway]:
    async with running_gateway(redis_url, tmp_path, limits=UNBOUND) as gateway:
        gateway.is_never_pressed()
        yield gateway


class Course:
    """One run that grows, who reads it, and what each role is told of it in the end."""

    def __init__(self, gateway: RunningGateway, run: str, share: str) -> None:
        self.gateway, self.run = gateway, run
        self.dice = random.Random(7)
        self.at = ["0"]
        self.readers: list[tuple[str, Reader, Frame]] = []
        self._just_killed: list[Reader] = []
        self._reading: list[asyncio.Task[None]] = []
        self._credentials = {
            "share": share, "operator": token("root", roles=["operator"]), "owner": token("ana"),
            **{name: token(name) for name in ("viewer", "named", "collaborator")},
        }  # fmt: skip

    async def cut(self) -> None:
        """Who was killed at the cut before comes back and stays for a while (at every other cut), and of each transport
        the next is killed.

        Each time in another role; in a soak in each role each time.
        """
        self.at.append(str((await self.gateway.store.heads([self.run]))[self.run]))
        number = len(self.at) - 1
        for reader in self._just_killed if number % 2 or SOAK else ():
            self._reading.append(asyncio.create_task(self._stays(reader)))
        self._just_killed.clear()
        roles = [role for role in ROLES if role != "named" or number > 2]
        for shift, transport in enumerate(READERS):
            for role in roles if SOAK else [roles[(number + shift) % len(roles)]]:
                await self._is_killed(transport, role, number)

    def reader(self, transport: str, role: str) -> Reader:
        return READERS[transport](self.gateway, self.run, self._credentials[role])

    async def _is_killed(self, transport: str, role: str, number: int) -> None:
        """A reader comes with a cursor and is killed once it was told where it stands, before any event."""
        reader = self.reader(transport, role)
        behind = self.dice.randrange(-1, 6)
        after = max(0, number - max(0, behind))
        limit = None if transport == "pages" else self.dice.choice((None, 1, 3))
        begin = await reader.join("latest" if behind < 0 else self.at[after], limit)
        if limit is None or number - after <= limit:
            assert (begin.recovery, begin.cursor) == ("resumed", self.at[after])
        else:
            assert (begin.recovery, begin.cursor) == ("snapshot", self.at[number - limit])
            assert begin.skipped == (after + 1, number - limit)
        await reader.drop()
        assert (reader.raws, reader.cursor) == ([], begin.cursor)
        self.readers.append((role, reader, begin))
        self._just_killed.append(reader)

    async def _stays(self, reader: Reader) -> None:
        """Comes back with what it was told, reads on into what is written meanwhile, and is cut off again."""
        await self._returns(reader)
        await reader.read(STAYS)

    async def _returns(self, reader: Reader) -> None:
        cursor = reader.cursor
        begin = await reader.join(cursor)
        assert (begin.recovery, begin.cursor) == ("resumed", cursor)

    async def finish(self) -> None:
        """All read to the end."""
        await asyncio.gather(*self._reading)
        for _, reader, _ in self.readers:
            if not reader.has_ended:
                await self._returns(reader)
                await reader.read()

    async def told(self, role: str) -> tuple[dict[str, Any], list[bytes]]:
        """The Run and the whole log as this role is shown them now."""
        reader = self.reader("pages", role)
        run = (await reader.join("0")).projection
        await reader.read()
        assert run is not None
        return run, reader.raws


async def grow(course: Course, hand: Hand) -> None:
    """Writes everything that there is, in no order, with a cut after each event; now and then with a snapshot."""
    dice = Dice(course.dice)
    asked, side = approval("for-named", deciders=["user:named"])
    await hand.write(asked, side=side)
    await course.cut()
    for number in range(4, EVENTS_IN_ALL):
        type_ = LATER[number % len(LATER)] if number % 3 else course.dice.choice(LATER)
        audience = course.dice.choice(AUDIENCES) if type_ in NARROWED else None
        snapshot = None
        if number % 41 == 0:
            page = await course.gateway.store.read_log(course.run, START, limit=500)
            snapshot = fold_all(course.run, None, [entry.event() for entry in page.entries])
        data = dice.waits() if type_ == "run.waiting" else data_for(type_, dice)
        await hand.write(NewEntry(type_, AGENT, data, audience=audience), snapshot=snapshot)
        await course.cut()
    await hand.complete()


async def test_what_was_shown_and_what_came_later_is_the_run_at_every_cut(gateway: RunningGateway) -> None:
    run = await gateway.start(grants={"user:viewer": "viewer", "user:collaborator": "collaborator"})
    share = (await share_of(gateway, run))["token"]
    course = Course(gateway, run, share)
    await course.cut()
    hand = await gateway.hold(run)
    await course.cut()
    await grow(course, hand)
    await course.finish()
    told = {role: await course.told(role) for role in ROLES}
    page = await gateway.store.read_log(run, START, limit=EVENTS_IN_ALL + 1)
    assert told["operator"][1] == [entry.raw for entry in page.entries]
    for role in ROLES:
        mine = [(reader, begin) for each, reader, begin in course.readers if each == role]
        assert len(mine) >= EVENTS_IN_ALL * len(READERS) // len(ROLES) - 6
        judge(role, mine, course.at, *told[role])


def judge(
    role: str, readers: list[tuple[Reader, Frame]], at: list[str], final: dict[str, Any], log: list[bytes]
) -> None:
    """All readers of one role: each by itself, and each projection against the one before."""
    seen = [shown(raw) for raw in log]
    hidden = {event.type for event in seen if is_hidden(event)}
    sees_requests = not hidden & REQUESTS
    assert sees_requests == (role not in ("viewer", "named", "share"))
    assert (not hidden) == (role == "operator")
    assert len(log) == EVENTS_IN_ALL == final["last_seq"]
    walked: Holding | None = None
    for reader, begin in readers:
        projection = begin.projection
        assert projection is not None
        after = at.index(begin.cursor or "")
        assert after <= projection["last_seq"]
        assert reader.raws == log[after:]
        walked = walked or Holding(projection, sees_requests=sees_requests)
        holding = Holding(projection, sees_requests=sees_requests)
        for event in seen[walked.run.last_seq : projection["last_seq"]]:
            walked.take(event)
        assert walked.differences(projection) == {}, (role, projection["last_seq"])
        for event in seen[after:]:
            holding.take(event)
        assert holding.differences(final) == {}, (role, projection["last_seq"])
