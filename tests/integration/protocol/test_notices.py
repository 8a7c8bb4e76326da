"""Notices: what was appended, byte for byte and at once; and a plain None when some may have been missed."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.support.lab import Lab, note, open_lab
from tests.support.server import StoreServer
from tests.support.waiting import wait_until
from towline.protocol.store.api import Notice
from towline.protocol.store.notices import Notices


class Listener:
    """Collects what a reader of notices yields."""

    def __init__(self, notices: Notices) -> None:
        self.notices = notices
        self.got: list[Notice | None] = []
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for notice in self.notices:
            self.got.append(notice)

    def entries(self, run: str) -> list[Any]:
        return [e for n in self.got if n is not None and n.run == run for e in n.entries]

    @property
    def gaps(self) -> int:
        return self.got.count(None)

    async def aclose(self) -> None:
        await self.notices.aclose()
        await self._reading


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    """A server that these tests kill."""
    with StoreServer(tmp_path_factory.mktemp("notices")) as server:
        yield server


@pytest.fixture
async def lab(server: StoreServer) -> AsyncIterator[Lab]:
    server.ensure_running()
    server.flush()
    async with open_lab(server.url) as lab:
        yield lab


@pytest.fixture
async def listener(lab: Lab) -> AsyncIterator[Listener]:
    listener = Listener(lab.store.notices())
    yield listener
    await listener.aclose()


async def test_what_scripts_append_comes_as_it_stands_in_the_log(lab: Lab, listener: Listener) -> None:
    await wait_until(lambda: listener.gaps == 1, "the first connection to be told")
    await listener.notices.follow("r1")
    lease = await lab.held()
    await lab.store.commit(lab.commit(lease, 1, note("a\nb"), note("ü", audience="operator")))
    await lab.accept()
    await lab.held("r2")
    log = await lab.log()
    await wait_until(lambda: len(listener.entries("r1")) == 4, "four entries of the followed run")
    heard = listener.entries("r1")
    assert [(e.cursor, e.raw, e.meta) for e in heard] == [(e.cursor, e.raw, e.meta) for e in log]
    assert listener.entries("r2") == []
    await listener.notices.unfollow("r1")
    await listener.notices.follow("r2")
    await lab.accept("r2")
    await lab.accept(command_id="c2")
    await wait_until(lambda: listener.entries("r2"), "the other run")
    assert len(listener.entries("r1")) == 4


async def test_a_server_that_was_killed_is_a_gap_and_following_goes_on(
    lab: Lab, listener: Listener, server: StoreServer
) -> None:
    await listener.notices.follow("r1")
    await wait_until(lambda: listener.gaps == 1, "the first connection to be told")
    lease = await lab.held()
    await wait_until(lambda: listener.entries("r1"), "a notice")
    for gap in (2, 3):
        await asyncio.to_thread(server.restart)
        await wait_until(lambda gap=gap: listener.gaps >= gap, "the lost connection to be told")  # type: ignore[misc]
        heard = len(listener.entries("r1"))
        await lab.store.commit(lab.commit(lease, gap - 1, note()))
        await wait_until(lambda heard=heard: len(listener.entries("r1")) > heard, "notices after it")  # type: ignore[misc]


async def test_a_connection_that_the_server_cut_is_a_gap(lab: Lab, listener: Listener) -> None:
    await listener.notices.follow("r1")
    await wait_until(lambda: listener.gaps == 1, "the first connection to be told")
    await lab.raw.client_kill_filter(_type="pubsub")
    await wait_until(lambda: listener.gaps == 2, "the cut to be told")
    await lab.create()
    await wait_until(lambda: listener.entries("r1"), "notices after the cut")


async def test_runs_followed_while_the_server_is_away_are_followed_once_it_is_back(
    lab: Lab, listener: Listener, server: StoreServer
) -> None:
    await wait_until(lambda: listener.gaps == 1, "the first connection to be told")
    await asyncio.to_thread(server.kill)
    await listener.notices.follow("r1")
    await asyncio.to_thread(server.restart)
    await wait_until(lambda: listener.gaps >= 2, "the lost connection to be told")
    await lab.create()
    await wait_until(lambda: listener.entries("r1"), "a notice of the run")
