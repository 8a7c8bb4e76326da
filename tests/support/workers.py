"""Real workers in this process over a real store, and a hand that starts runs and sends commands as a gateway would."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from tests.support.waiting import wait_until
from towline.protocol import commands
from towline.protocol.codec import Entry
from towline.protocol.commands import Receipt
from towline.protocol.cursor import START
from towline.protocol.events import TERMINAL, Event
from towline.protocol.projection import Caller
from towline.protocol.run_state import Run
from towline.protocol.store.acceptance import send_command
from towline.protocol.store.payloads import Payloads
from towline.protocol.store.redis import RedisStore
from towline.protocol.store.scripts import Probe
from towline.protocol.store.spilling import unspill
from towline.protocol.store.starting import StartRun, start_run
from towline.workers.registry import Registry
from towline.workers.replay import Replay
from towline.workers.settings import WorkerSettings
from towline.workers.worker import Worker

OWNER = Caller("ana", "owner")


class Stage:
    """A store with the workers of one test. Worker names count: w1, w2, …"""

    def __init__(self, url: str, store: RedisStore, folder: Path, registry: Registry) -> None:
        self.url = url
        self.store = store
        self.registry = registry
        self.payload_folder = folder / "payloads"
        self.payloads = Payloads(self.payload_folder)
        self.tasks: list[asyncio.Task[None]] = []
        self._names = itertools.count(1)
        self._commands = itertools.count(1)
        self._opened: list[RedisStore] = []

    async def worker(
        self, *, registry: Registry | None = None, probe: Probe | None = None, **settings: Any
    ) -> tuple[Worker, asyncio.Task[None]]:
        """A worker that works. Cancelling its task is its death: no lease is given back."""
        given = {"lease_ms": 1_000, "renew_ms": 200, "linger_ms": 300, "drain_s": 1.0, **settings}
        name = f"w{next(self._names)}"
        store = await RedisStore.connect(self.url, probe=probe, for_tests=True)
        self._opened.append(store)
        made = WorkerSettings(store_url=self.url, payloads=self.payload_folder, name=name, **given)
        worker = Worker(made, store, definitions=registry or self.registry)
        task = asyncio.get_running_loop().create_task(worker.run())
        self.tasks.append(task)
        await wait_until(self._announced(name), f"{name} to announce itself")
        return worker, task

    def _announced(self, name: str) -> Callable[[], Any]:
        async def check() -> bool:
            return any(announced.worker == name for announced in await self.store.announced())

        return check

    async def start(self, workflow: str, value: Any = None, *, queue: str | None = None, **members: Any) -> str:
        """A new run; its id. `members`: further members of its start."""
        started = await start_run(
            self.store,
            self.payloads,
            StartRun(workflow=workflow, input=value, queue=queue, **members),
            caller=OWNER,
            announced=await self.store.announced(),
        )
        return started.run

    async def send(self, run: str, type_: str, data: Any = None, *, command_id: str | None = None) -> Receipt:
        """A command of the owner; its receipt."""
        command = commands.decode(type_, data, command_id or f"c{next(self._commands)}")
        signals = {
            name: announced.workflow.signals[name]
            for announced in await self.store.announced()
            for name in announced.workflow.signals
        }
        return await send_command(self.store, run, command, OWNER, signals=signals)

    async def approve(self, run: str, type_: str = "approve") -> Receipt:
        """Decides the run's open approval, once there is one."""
        asked = await self.wait_for(run, "approval.requested")
        return await self.send(run, type_, {"request": asked.data["request"], "digest": asked.data["digest"]})

    # --- looking

    async def entries(self, run: str) -> list[Entry]:
        page = await self.store.read_log(run, START, limit=10_000, private=True)
        return [await unspill(entry, self.payloads.of(run)) for entry in page.entries]

    async def events(self, run: str) -> list[Event]:
        return [entry.event() for entry in await self.entries(run)]

    async def types(self, run: str) -> list[str]:
        return [event.type for event in await self.events(run)]

    async def status(self, run: str) -> Run:
        return (await self.store.load(run)).run

    async def wait_for(self, run: str, *types: str, count: int = 1, timeout_s: float = 20.0) -> Event:
        """The `count`-th event of one of these types, once it is there."""

        async def found() -> Event | None:
            events = [event for event in await self.events(run) if event.type in types]
            return events[count - 1] if len(events) >= count else None

        event = await wait_until(found, f"{' or '.join(types)} of {run}", timeout_s=timeout_s)
        assert event is not None
        return event

    async def ended(self, run: str, timeout_s: float = 30.0) -> Event:
        """The terminal event, once it is there. The whole log is checked on the way."""
        terminal = await self.wait_for(run, *TERMINAL, timeout_s=timeout_s)
        await self.check(run)
        return terminal

    async def result(self, run: str, timeout_s: float = 30.0) -> Any:
        """The result of a run that completes."""
        terminal = await self.ended(run, timeout_s)
        assert terminal.type == "run.completed", terminal
        return terminal.data.get("result")

    async def check(self, run: str) -> None:
        """What must hold of every sealed log: dense, one end, one result a step, and its code replays to it."""
        entries = await self.entries(run)
        events = [entry.event() for entry in entries]
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert [event.type in TERMINAL for event in events] == [False] * (len(events) - 1) + [True]
        ends = [event.data["step"] for event in events if event.type in ("tool.finished", "tool.failed")]
        assert len(ends) == len(set(ends)), ends
        created = events[0].data
        definition = self.registry.workflow_for(created["workflow"], created["version"])
        assert definition is not None
        replay = Replay(definition, run)
        try:
            replay.receive_all(entries)
            replay.finish()
            replay.verify_ending()
        finally:
            replay.drop()
        # Nobody stands in line for it any more.
        loaded = await self.store.load(run)
        assert loaded.facts.sealed
        assert loaded.run.is_terminal
        due = await self.store.due()
        assert all(run not in runs for _, runs, _ in due)

    async def aclose(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for store in [*self._opened, self.store]:
            await store.aclose()


@asynccontextmanager
async def stage(url: str, folder: Path, registry: Registry) -> AsyncIterator[Stage]:
    """A stage that leaves nothing running."""
    made = Stage(url, await RedisStore.connect(url, for_tests=True), folder, registry)
    try:
        yield made
    finally:
        await made.aclose()


def decoded(raw: bytes) -> Any:
    return msgspec.json.decode(raw)
