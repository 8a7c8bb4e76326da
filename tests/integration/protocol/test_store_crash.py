"""The store killed and put back: what was acknowledged is there, once; an older copy is noticed by everyone."""

import asyncio
import functools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.lab import Lab, note, open_lab
from tests.support.server import StoreServer
from tests.support.waiting import wait_until
from towline.protocol.cursor import Cursor
from towline.protocol.store import api


@pytest.fixture
def server(tmp_path: Path) -> Iterator[StoreServer]:
    """A server that syncs each write before it answers, as users run it."""
    with StoreServer(tmp_path / "data", durable=True) as server:
        yield server


class Writer:
    """Appends to one run, keeping a ledger of what was acknowledged; an unknown outcome is asked for again."""

    def __init__(self, lab: Lab, run: str) -> None:
        self.lab, self.run = lab, run
        self.acked: list[str] = []
        self.asked = 0
        self.unknown = 0

    async def write(self, stop: asyncio.Event) -> None:
        lease = await self.lab.held(self.run)
        number = 1
        while not stop.is_set():
            text = f"{self.run}-{number}"
            self.asked += 1
            try:
                await self.lab.store.commit(self.lab.commit(lease, number, note(text)))
            except api.StoreUnavailable:
                self.unknown += 1
                continue
            self.acked.append(text)
            number += 1


def reached(writers: list[Writer], count: int) -> bool:
    return all(len(writer.acked) >= count for writer in writers)


async def test_a_store_killed_under_load_keeps_each_acknowledged_append_once(server: StoreServer) -> None:
    async with open_lab(server.url) as lab:
        writers = [Writer(lab, f"r{n}") for n in range(8)]
        stop = asyncio.Event()
        tasks = [asyncio.create_task(w.write(stop)) for w in writers]
        for round_ in range(1, 4):
            await wait_until(functools.partial(reached, writers, 40 * round_), "appends under load")
            await asyncio.to_thread(server.restart)
        await wait_until(functools.partial(reached, writers, 160), "appends after the last kill")
        stop.set()
        await asyncio.gather(*tasks)
        for writer in writers:
            log = await lab.log(writer.run)
            assert [e.seq for e in log] == list(range(1, len(log) + 1))
            texts = [e.event().data["text"] for e in log[1:]]
            assert texts[: len(writer.acked)] == writer.acked
            assert len(texts) == len(set(texts)) <= len(writer.acked) + 1
        assert sum(w.asked for w in writers) >= 8 * 160


def copy_of(server: StoreServer, to: Path) -> Path:
    """A copy of the log files as they are now. The server answers nothing in between."""
    shutil.copytree(server.folder / "appendonlydir", to)
    return to


async def test_an_older_copy_of_the_log_is_noticed_by_holders_and_readers(server: StoreServer, tmp_path: Path) -> None:
    async with open_lab(server.url) as lab:
        lease = await lab.held()
        await lab.store.commit(lab.commit(lease, 1, note("kept")))
        await lab.accept(command_id="lost")
        await lab.store.commit(lab.commit(lease, 2, note("kept too")))
        old = copy_of(server, tmp_path / "old")
        await lab.accept(command_id="lost too")
        lost = await lab.head()
        await lab.store.commit(lab.commit(lease, 3, note("lost"), seen=lost))
        ahead = await lab.head()
        with lab_offline(server):
            shutil.rmtree(server.folder / "appendonlydir")
            shutil.copytree(old, server.folder / "appendonlydir")
        assert (await lab.store.read_log("r1", ahead, limit=9)).recovery == "ahead"
        head = await lab.head()
        assert head.seq == 4
        # The fence is the same and still holds, but the log is older than what its holder knows.
        for commit in (
            lab.commit(lease, 4, note("x"), seen=head),
            lab.commit(lease, 3, note("x"), seen=lost),
            lab.commit(lease, 2 + 2, note("x"), seen=lost),
        ):
            with pytest.raises(api.Diverged):
                await lab.store.commit(commit)
            with pytest.raises(api.Diverged):
                await lab.store.close(commit)
        # Others write on: the same seqs hold other entries now, and every cursor says so.
        await lab.lapse()
        other = await lab.claim(holder="w2")
        assert other.fence.epoch == 2
        await lab.store.commit(lab.commit(other, 1, note("a"), note("b"), note("c"), seen=head))
        for cursor in (lost, ahead):
            page = await lab.store.read_log("r1", cursor, limit=9)
            assert (page.recovery, list(page.entries)) == ("diverged", [])
        assert (await lab.store.read_log("r1", head, limit=9)).recovery == "ok"
        assert (await lab.store.read_log("r1", Cursor(lost.seq), limit=9)).recovery == "ok", "a bare seq proves nothing"
        with pytest.raises(api.Fenced):
            await lab.store.commit(lab.commit(lease, 3, note("x"), seen=head))


class lab_offline:  # noqa: N801 - reads as a phrase
    """The server is down inside."""

    def __init__(self, server: StoreServer) -> None:
        self.server = server

    def __enter__(self) -> None:
        self.server.kill()

    def __exit__(self, *_: Any) -> None:
        self.server.start()


async def test_calls_while_the_store_is_away_are_unavailable_and_then_go_on(server: StoreServer) -> None:
    async with open_lab(server.url) as lab:
        lease = await lab.held()
        await asyncio.to_thread(server.kill)
        calls: list[Any] = [
            lab.store.commit(lab.commit(lease, 1, note())), lab.store.facts("r1"), lab.create("r2"), lab.accept(),
            lab.store.read_hints("default", count=1, block_ms=1), lab.store.due(), lab.store.sync_clock(),
            lab.store.announced(), lab.store.heads(["r1"]), lab.store.list_runs("a|", before=None, limit=1),
            lab.store.side_matching("r1", "c|"), lab.store.read_log("r1", lease.cursor, limit=1),
        ]  # fmt: skip
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(a) for a in answers} == {api.StoreUnavailable}
        await asyncio.to_thread(server.restart)
        await lab.store.commit(lab.commit(lease, 1, note()))
        assert (await lab.head()).seq == 2
        assert await lab.store.read_hints("default", count=1, block_ms=1) != []
