"""kill -9 of everything, everywhere: the run completes, recorded once, and its watcher misses nothing.

One journey per crash point: the process that reaches the point dies there, as by `kill -9`, and a keeper starts
it again. Points that only a sweep reaches get a worker that is killed first.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.stack import Stack
from tests.support.traveller import check, travel
from tests.support.waiting import wait_until
from towline.protocol.client.views import SeenEvent
from towline.protocol.store.crash_points import names
from towline.protocol.times import to_wire

pytestmark = pytest.mark.processes

AT_ONCE = 4
"""How many stacks run at a time on two cores."""

GATEWAY_POINTS = [
    f"{side}:{script}" for side in ("before", "after") for script in ("create_run", "accept_command", "take_tokens")
]
SWEEP_POINTS = [
    f"{side}:{script}" for side in ("before", "after") for script in ("fire_timer", "rehint_run", "sweep_partition")
]
"""Reached by a worker or a gateway, whichever sweeps first; `rehint_run` only once a lease ran out."""
GRANT_POINTS = ["before:change_access", "after:change_access"]
"""Reached by a gateway that changes who may reach a run."""
HTTP_WORKER_POINTS = ["before:append_once", "after:append_once"]
"""Reached only by a gateway through which a worker holds a run over HTTP; no journey here does."""
THREAD_POINTS = ["before:reserve_id", "after:reserve_id"]
"""Reached by a gateway that starts a run of a thread under a key."""
START_POINTS = ["before:start_run", "after:start_run"]
"""Reached by whoever sweeps when the time of a run comes."""
PURGE_POINTS = ["before:purge_run", "after:purge_run"]
"""Reached by a gateway that deletes a run; see `test_purge_kills`."""
TRIM_POINTS = ["before:trim_log", "after:trim_log"]
"""Reached by nobody yet: no workflow begins its log anew."""
WORKER_POINTS = sorted(
    set(names())
    - {*THREAD_POINTS}
    - {*GATEWAY_POINTS, *SWEEP_POINTS, *GRANT_POINTS, *HTTP_WORKER_POINTS, *START_POINTS, *PURGE_POINTS, *TRIM_POINTS}
)


async def _journey(
    folder: Path,
    stack: Stack,
    on_event: Callable[[Stack, SeenEvent], Awaitable[None]] | None = None,
    *,
    in_ms: int | None = None,
    **options: Any,
) -> None:
    """`in_ms`: how much later than now the run is to start. `options`: further members of its start."""
    ledger = folder / "ledger"
    async with stack, stack.client() as client:

        async def told(event: SeenEvent) -> None:
            if on_event is not None:
                await on_event(stack, event)

        if in_ms is not None:
            options["start_at"] = to_wire(int(time.time() * 1000) + in_ms)
        try:
            seen = await asyncio.wait_for(travel(client, ledger, on_event=told, **options), 120)
            check(seen, ledger)
            await wait_until(stack.has_killed, f"{folder.name} to be reached")
        except (AssertionError, TimeoutError) as error:
            raise AssertionError(f"{folder.name}: {error!r}\n{stack.logs()}") from error


async def _in_turns(work: list[Awaitable[None]]) -> None:
    turns = asyncio.Semaphore(AT_ONCE)

    async def in_turn(each: Awaitable[None]) -> None:
        async with turns:
            await each

    answers = await asyncio.gather(*(in_turn(each) for each in work), return_exceptions=True)
    failures = [answer for answer in answers if isinstance(answer, BaseException)]
    if failures:
        raise BaseExceptionGroup(f"{len(failures)} of {len(work)}", failures)


def _folder(root: Path, name: str) -> Path:
    folder = root / name.replace(":", "-")
    folder.mkdir()
    return folder


async def test_a_worker_dies_at_each_of_its_crash_points(tmp_path: Path) -> None:
    work: list[Awaitable[None]] = []
    for point in WORKER_POINTS:
        hit = 3 if point.endswith(":commit") else 1
        folder = _folder(tmp_path, point)
        work.append(_journey(folder, Stack(folder, crash_worker=f"{point}:{hit}")))
    await _in_turns(work)


async def test_a_gateway_dies_at_each_of_its_crash_points(tmp_path: Path) -> None:
    work: list[Awaitable[None]] = []
    for point in [*GATEWAY_POINTS, *THREAD_POINTS]:
        folder = _folder(tmp_path, point)
        options: dict[str, Any] = {"thread": "a"} if point in THREAD_POINTS else {}
        work.append(_journey(folder, Stack(folder, crash_gateway=f"{point}:1"), **options))
    await _in_turns(work)


async def test_a_gateway_dies_while_it_gives_somebody_access(tmp_path: Path) -> None:
    async def grant(stack: Stack, event: SeenEvent) -> None:
        if event.type != "run.created":
            return
        async with httpx.AsyncClient(
            base_url=stack.urls[0], headers={"Authorization": f"Bearer {stack.token}"}
        ) as http:

            async def is_given() -> bool:
                try:
                    answer = await http.put(f"/v1/runs/{event.run}/grants/user:bob", json={"role": "viewer"})
                except httpx.HTTPError:
                    return False
                return answer.status_code == 200

            await wait_until(is_given, "the grant to be acknowledged", 60)
            items = (await http.get(f"/v1/runs/{event.run}/grants")).json()["items"]
            assert [each["subject"] for each in items] == ["user:ana", "user:bob"]

    work: list[Awaitable[None]] = []
    for point in GRANT_POINTS:
        folder = _folder(tmp_path, point)
        work.append(_journey(folder, Stack(folder, crash_gateway=f"{point}:1"), grant))
    await _in_turns(work)


async def test_whoever_sweeps_dies_while_it_helps_a_run_whose_worker_died(tmp_path: Path) -> None:
    """Two workers, so that one more may die; the first is killed in the middle of a step."""

    async def kill_the_holder(stack: Stack, event: SeenEvent) -> None:
        if event.type == "run.started":
            holder = int(event.data["worker"].rsplit("-", 2)[1])
            for kept in stack.workers:
                if kept.pid == holder:
                    kept.kill()
                    kept.expected += 1

    work: list[Awaitable[None]] = []
    for point in [*SWEEP_POINTS, *START_POINTS]:
        folder = _folder(tmp_path, point)
        stack = Stack(folder, workers=2, crash_gateway=f"{point}:1", crash_worker=f"{point}:1")
        work.append(_journey(folder, stack, kill_the_holder, in_ms=500 if point in START_POINTS else None))
    await _in_turns(work)


async def test_worker_gateway_and_store_are_killed_in_turn_during_one_run(tmp_path: Path) -> None:
    killed: list[str] = []

    async def kill_something(stack: Stack, event: SeenEvent) -> None:
        if event.type == "plan.proposed" and "worker" not in killed:
            killed.append("worker")
            stack.workers[0].kill()
        elif event.type == "run.taken_over" and "gateway" not in killed:
            killed.append("gateway")
            stack.gateways[0].kill()
        elif event.type == "tool.retrying" and "store" not in killed:
            killed.append("store")
            await asyncio.to_thread(stack.store.restart)
        elif event.type == "run.waiting" and "store again" not in killed:
            killed.append("store again")
            await asyncio.to_thread(stack.store.restart)

    folder = _folder(tmp_path, "all")
    await _journey(folder, Stack(folder, workers=1), kill_something)
    assert {"worker", "gateway", "store", "store again"} <= set(killed)
