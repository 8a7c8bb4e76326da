"""The reader of notices against a store that says what a test tells it to."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.store_peer import Command, Line, Peer, bulk
from tests.support.waiting import wait_until
from towline.protocol.codec import EntryMeta, encode_meta
from towline.protocol.store.api import Notice
from towline.protocol.store.keys import RunKeys
from towline.protocol.store.notices import Notices

META = encode_meta(EntryMeta())


def message(run: str, *seqs: int) -> bytes:
    """What the store pushes for entries of a run."""
    lines = [line for seq in seqs for line in (b"%d-7" % seq, META, b'{"seq":%d}' % seq)]
    return b"*3\r\n" + bulk(b"smessage") + bulk(RunKeys.of(run).channel.encode()) + bulk(b"\n".join(lines))


def obliging(line: Line, command: Command) -> None:
    """Confirms and answers like a server."""
    if command[0] == b"PING":
        line.write(b"*2\r\n" + bulk(b"pong") + bulk(b"") if len(line.commands) > 1 else b"+PONG\r\n")
    else:
        line.write(b"*3\r\n" + bulk(command[0].lower()) + bulk(command[1]) + b":1\r\n")


class Heard:
    """Everything that was yielded, and how much of it in each turn of the event loop."""

    def __init__(self) -> None:
        self.got: list[Notice | None] = []
        self.batches: list[int] = []

    async def read(self, notices: Notices) -> None:
        loop, batch = asyncio.get_running_loop(), 0

        def end_batch() -> None:
            nonlocal batch
            self.batches.append(batch)
            batch = 0

        async for notice in notices:
            if not batch:
                loop.call_soon(end_batch)
            batch += 1
            self.got.append(notice)

    @property
    def seqs(self) -> list[tuple[str, int]]:
        return [(notice.run, entry.seq) for notice in self.got if notice is not None for entry in notice.entries]

    @property
    def gaps(self) -> int:
        return self.got.count(None)


@pytest.fixture
async def peer(tmp_path: Path) -> AsyncIterator[Peer]:
    async with Peer(tmp_path / "s").listening() as peer:
        peer.answer = obliging
        yield peer


@asynccontextmanager
async def reading(peer: Peer, *, quiet_s: float = 60.0) -> AsyncIterator[tuple[Notices, Heard]]:
    notices, heard = Notices(f"unix://{peer.path}", quiet_s=quiet_s), Heard()
    task = asyncio.create_task(heard.read(notices))
    try:
        yield notices, heard
    finally:
        await notices.aclose()
        await task


async def test_what_was_followed_before_is_subscribed_before_the_gap_is_told(peer: Peer) -> None:
    async with reading(peer) as (notices, heard):
        for run in ("r1", "r2"):
            await notices.follow(run)
        await wait_until(lambda: heard.gaps == 1, "the first connection to be told")
        names = [command[0] for command in peer.commands]
        assert names == [b"SSUBSCRIBE", b"SSUBSCRIBE", b"PING"]


async def test_subscriptions_of_one_turn_leave_together(peer: Peer) -> None:
    async with reading(peer) as (notices, heard):
        await wait_until(lambda: heard.gaps == 1, "the first connection to be told")
        before = peer.lines[0].packets
        for number in range(300):
            await notices.follow(f"r{number}")
        await notices.unfollow("r7")
        await wait_until(lambda: len(peer.commands) == 302, "the subscriptions")
        assert peer.lines[0].packets - before < 10
        assert peer.commands[-1] == [b"SUNSUBSCRIBE", RunKeys.of("r7").channel.encode()]


async def test_what_one_read_brought_comes_as_one_batch(peer: Peer) -> None:
    async with reading(peer) as (_, heard):
        await wait_until(lambda: heard.gaps == 1, "the first connection to be told")
        peer.lines[0].write(b"".join(message(f"r{number % 3}", number) for number in range(1, 101)))
        await wait_until(lambda: len(heard.seqs) == 100, "the notices")
        assert heard.seqs == [(f"r{number % 3}", number) for number in range(1, 101)]
        assert len(heard.batches) < 10


async def test_notices_may_arrive_in_crumbs(peer: Peer) -> None:
    async with reading(peer) as (_, heard):
        await wait_until(lambda: heard.gaps == 1, "the first connection to be told")
        for byte in message("r1", 1, 2) + message("r1", 3):
            peer.lines[0].write(bytes([byte]))
            await asyncio.sleep(0)
        await wait_until(lambda: len(heard.seqs) == 3, "the notices")
        assert [len(notice.entries) for notice in heard.got if notice is not None] == [2, 1]


async def test_half_a_notice_is_a_gap(peer: Peer) -> None:
    async with reading(peer) as (notices, heard):
        await notices.follow("r1")
        await wait_until(lambda: heard.gaps == 1, "the first connection to be told")
        peer.lines[0].write(message("r1", 1)[:-9])
        peer.lines[0].hang_up()
        await wait_until(lambda: heard.gaps == 2, "the gap to be told")
        peer.lines[1].write(message("r1", 2))
        await wait_until(lambda: heard.seqs, "a notice after it")
        assert heard.seqs == [("r1", 2)]
        assert peer.lines[1].commands[0] == [b"SSUBSCRIBE", RunKeys.of("r1").channel.encode()]


async def test_a_refused_subscription_is_tried_again(peer: Peer) -> None:
    def refusing(line: Line, command: Command) -> None:
        if len(peer.lines) == 1:
            line.write(b"-NOPERM no access to that channel\r\n")
        else:
            obliging(line, command)

    peer.answer = refusing
    async with reading(peer) as (notices, heard):
        await notices.follow("r1")
        await wait_until(lambda: heard.gaps == 1, "the second connection to be told")
        assert len(peer.lines) == 2


async def test_a_quiet_store_is_asked_and_a_dead_one_left(peer: Peer) -> None:
    async with reading(peer, quiet_s=0.02) as (notices, heard):
        await notices.follow("r1")
        await wait_until(lambda: [c[0] for c in peer.commands].count(b"PING") > 3, "a quiet store to be asked")
        peer.answer = lambda line, command: obliging(line, command) if line is not peer.lines[0] else None
        await wait_until(lambda: heard.gaps >= 2, "the store that does not answer to be left")
        assert len(peer.lines) >= 2


async def test_closing_ends_the_iteration_wherever_it_stands(peer: Peer, tmp_path: Path) -> None:
    never_read = Notices(f"unix://{peer.path}")
    await never_read.follow("r1")
    await never_read.aclose()
    nobody_there = Notices(f"unix://{tmp_path}/nobody")
    task = asyncio.create_task(Heard().read(nobody_there))
    await asyncio.sleep(0)
    await nobody_there.aclose()
    await task
    async with reading(peer) as (notices, heard):
        await wait_until(lambda: heard.gaps == 1, "the first connection to be told")
        await notices.aclose()
    assert len(peer.lines) == 1
