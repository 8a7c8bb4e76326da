"""What a server may do to us: forget the scripts, run out of memory, come back empty-handed."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.scripts.test_fire_timer import fire
from tests.support.lab import Lab, ending, note, open_lab
from tests.support.server import StoreServer
from towline.protocol.store import api


@pytest.fixture(scope="module")
def small_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    """A server whose memory these tests fill."""
    with StoreServer(tmp_path_factory.mktemp("small")) as server:
        yield server


@pytest.fixture
async def small(small_server: StoreServer) -> AsyncIterator[Lab]:
    small_server.flush()
    async with open_lab(small_server.url) as lab:
        yield lab
        await lab.raw.config_set("maxmemory", "0")


async def fill(lab: Lab) -> None:
    await lab.raw.config_set("maxmemory", "1")


async def test_a_server_that_forgot_the_scripts_is_told_again(lab: Lab) -> None:
    await lab.raw.script_flush()
    lease = await lab.held()
    await lab.raw.script_flush()
    await lab.store.commit(lab.commit(lease, 1, note()))
    await lab.raw.script_flush()
    await lab.accept()
    assert (await lab.head()).seq == 3


async def test_full_memory_refuses_growth_cleanly_and_lets_relief_pass(small: Lab) -> None:
    lab = small
    lease = await lab.held()
    await lab.accept(command_id="before")
    timer = api.Timer("timer", "t", 1)
    await lab.store.commit(lab.commit(lease, 1, arm=[timer]))
    await fill(lab)
    async with lab.unwritten():
        with pytest.raises(api.StoreFull):
            await lab.accept(command_id="signal")
        with pytest.raises(api.StoreFull):
            await lab.create("r2")
    assert await lab.store.heads(["r2"]) == {}
    assert await fire(lab) == "OK"
    await lab.accept(command_id="cancel", relief=True, counts=False, deadline_ms=lab.store.now_ms() + 1000)
    await lab.store.renew([api.Lease("r1", lease.fence)])
    await lab.store.commit(lab.commit(lease, 2, note("a result"), recorded=True))
    await lab.store.release(lab.commit(lease, 3, seen=await lab.head()), "hand_over")
    await lab.store.take_sweep(0, "s", 1000)
    await lab.raw.config_set("maxmemory", "0")
    await lab.lapse()
    await fill(lab)
    assert await lab.store.rehint("r1", "default") == "DUPLICATE"
    again = await lab.claim()
    await lab.store.close(lab.commit(again, 1, ending()))
    assert (await lab.types())[-1] == "run.completed"


async def test_the_repeat_of_an_accepted_command_is_answered_also_when_memory_is_full(small: Lab) -> None:
    lab = small
    await lab.create()
    await lab.accept()
    await fill(lab)
    assert await lab.store.command_outcome("r1", "alice", "c1") == api.Repeated(2, "f", "signal", "")


async def test_a_process_that_starts_now_can_bring_relief(small: Lab) -> None:
    lease = await small.held()
    await fill(small)
    async with open_lab(small.store.url) as other:
        hints = await other.store.read_hints("default", count=9, block_ms=1)
        assert [hint.run for hint in hints] == ["r1"]
        await other.store.return_hint("default", hints[0])
        await other.store.close(other.commit(lease, 1, ending()))
    assert (await small.types())[-1] == "run.completed"
