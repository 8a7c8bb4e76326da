"""A store put back to an older state under a warm worker and a connected client: nobody reads another history unawares.

The worker's next commit is answered `DIVERGED`: it drops its machine, claims anew and replays. The client's cursor
names an entry that is not in the log any more: it is told `reset`, drops what it held, and gets the history that
stands now.
"""

import asyncio
import shutil
from pathlib import Path

import pytest

from tests.support.stack import QUICK, Stack
from tests.support.waiting import wait_until
from towline.protocol.client.actions import Placed
from towline.protocol.client.views import SeenEvent

pytestmark = pytest.mark.processes

LONG_HELD = {**QUICK, "TOWLINE_WORKER_LINGER_MS": "60000"}
"""The worker keeps the run while it sleeps, so that it is warm when the store goes back."""


async def test_a_store_put_back_to_an_older_state(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    kept = tmp_path / "older"
    placed: list[Placed] = []
    events: list[SeenEvent] = []
    async with Stack(tmp_path / "stack", environment=LONG_HELD) as stack, stack.client() as client:
        started = await client.start("journey", {"ledger": str(ledger)})

        def on_place(place: Placed) -> None:
            placed.append(place)
            if place.recovery == "reset":
                events.clear()

        stream = client.events(started.id, on_place=on_place)

        async def watch() -> None:
            async for event in stream:
                events.append(event)
                if event.type == "approval.requested":
                    await client.approve(started.id, event.data["request"], event.data["digest"])

        def has(type_: str) -> bool:
            return any(event.type == type_ for event in events)

        async with asyncio.timeout(120), asyncio.TaskGroup() as group:
            group.create_task(watch())
            await wait_until(lambda: has("tool.retrying"), "the first steps")
            # What a copy of the disk would hold: the log as it is now, while the run goes on.
            await asyncio.to_thread(shutil.copytree, stack.data / "store", kept, ignore=_no_sockets)
            copied_to = events[-1].seq
            await wait_until(lambda: has("timer.started"), "more to happen after the copy")
            before = [event.fields for event in events]
            await asyncio.to_thread(_put_back, stack, kept)
            await wait_until(lambda: any(p.recovery == "reset" for p in placed), "the client to be told", timeout_s=30)
            await client.signal(started.id, "go", "went")
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert events[-1].type == "run.completed"
        shared = [event.fields for event in events[:copied_to]]
        assert before[: len(shared)][:1] == shared[:1], "the run is the same one"
        assert len(before) > copied_to, "nothing was lost, so nothing was shown"
        assert "replaying anew" in stack.logs(), "the worker never noticed"
        head = await client.get(started.id)
        assert head.last_seq == events[-1].seq


def _put_back(stack: Stack, kept: Path) -> None:
    stack.store.kill()
    folder = stack.data / "store"
    for name in ("appendonlydir", "dump.rdb"):
        if (folder / name).is_dir():
            shutil.rmtree(folder / name)
        if (kept / name).is_dir():
            shutil.copytree(kept / name, folder / name)
    stack.store.start()


def _no_sockets(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if (Path(folder) / name).is_socket()]
