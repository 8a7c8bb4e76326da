"""Real processes around a real store: started, killed with real signals, restarted by a keeper.

Promises that whatever it started has ended when it is left, by process id, and that a process which dies is
started again, without the crash point it died of. The store is initialised for tests, so crash points count.
"""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

from tests.support.server import StoreServer
from tests.support.waiting import wait_until
from towline.deploy.local_http import get_json
from towline.deploy.settings import make_secret
from towline.protocol.client.connect import Client
from towline.protocol.store.crash_points import VARIABLE as CRASH_AT
from towline.protocol.store.redis import RedisStore
from towline.protocol.tokens import mint

JOURNEY = Path(__file__).with_name("journey.py")
QUICK = {"TOWLINE_WORKER_LEASE_MS": "2000", "TOWLINE_WORKER_RENEW_MS": "100", "TOWLINE_WORKER_LINGER_MS": "100"}
"""A lease short enough for a test to wait out; linger below the journey's sleep, so that it lets the run go."""


class Kept:
    """One process that is started again when it dies. `deaths`: how each earlier one ended."""

    def __init__(self, name: str, arguments: list[str], environment: Mapping[str, str], log: Path) -> None:
        self.name = name
        self.deaths: list[int] = []
        self.expected = 0
        """How many of the deaths a test brought about itself."""
        self._arguments = arguments
        self._environment = {**os.environ, **environment}
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        await self._spawn()
        self._keeper = asyncio.create_task(self._keep())

    async def _spawn(self) -> None:
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "towline.deploy.cli", *self._arguments,
                env=self._environment, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    async def _keep(self) -> None:
        while True:
            assert self._process is not None
            self.deaths.append(await self._process.wait())
            if self.was_killed:  # of its crash point; one that a test killed still has it before it
                self._environment.pop(CRASH_AT, None)
            await self._spawn()

    def kill(self) -> None:
        """SIGKILL; the keeper starts it again."""
        os.kill(self.pid, signal.SIGKILL)

    @property
    def was_killed(self) -> bool:
        return self.deaths.count(-signal.SIGKILL) > self.expected

    async def stop(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            try:
                await asyncio.wait_for(self._process.wait(), 20)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()

    def tail(self) -> str:
        """The end of what it wrote, for a failed test."""
        return self._log.read_text(errors="replace")[-3000:] if self._log.exists() else ""


class Stack:
    """Store, gateways and workers in processes of their own. `async with`."""

    def __init__(
        self,
        folder: Path,
        *,
        workflows: Path = JOURNEY,
        gateways: int = 1,
        workers: int = 1,
        environment: Mapping[str, str] = QUICK,
        crash_gateway: str | None = None,
        crash_worker: str | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.data = folder / "data"
        self.store = StoreServer(self.data, durable=True)
        self.gateways: list[Kept] = []
        self.workers: list[Kept] = []
        self.urls: list[str] = []
        self._workflows = workflows
        self._counts = (gateways, workers)
        self._environment = dict(environment)
        self._crash = (crash_gateway, crash_worker)
        self._exit = AsyncExitStack()
        self.token = ""

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.store.start)
        self._exit.push_async_callback(asyncio.to_thread, self.store.stop)
        store = await RedisStore.connect(self.store.url, for_tests=True)
        await store.aclose()
        secret = make_secret(self.data)
        self.token = mint(secret.encode(), subject="ana", roles=["user", "operator"], ttl_s=3600)
        gateways, workers = self._counts
        for number in range(gateways):
            await self._add_gateway(number)
        for number in range(workers):
            await self._add_worker(number)
        await self.ready()
        return self

    async def __aexit__(self, *_: object) -> None:
        for kept in [*self.workers, *self.gateways]:
            await kept.stop()
        await self._exit.aclose()

    async def _add_gateway(self, number: int) -> None:
        port = _free_port()
        self.urls.append(f"http://127.0.0.1:{port}")
        arguments = ["gateway", "--data", str(self.data), "--host", "127.0.0.1", "--port", str(port)]
        environment = {**self._environment, **({CRASH_AT: self._crash[0]} if self._crash[0] else {})}
        kept = Kept(f"gateway-{number}", arguments, environment, self.folder / f"gateway-{number}.log")
        self.gateways.append(kept)
        await kept.start()

    async def _add_worker(self, number: int) -> None:
        arguments = ["worker", str(self._workflows), "--data", str(self.data)]
        environment = {**self._environment, **({CRASH_AT: self._crash[1]} if self._crash[1] else {})}
        kept = Kept(f"worker-{number}", arguments, environment, self.folder / f"worker-{number}.log")
        self.workers.append(kept)
        await kept.start()

    async def ready(self) -> None:
        """Back when every gateway answers and knows a workflow."""

        def is_ready() -> bool:
            for url in self.urls:
                if get_json(url, "/readyz").status != 200:
                    return False
                answer = get_json(url, "/v1/workflows", token=self.token)
                if self.workers and (answer.status != 200 or not answer.body["items"]):
                    return False
            return True

        try:
            await wait_until(lambda: asyncio.to_thread(is_ready), "the stack to be ready", timeout_s=60)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.logs()}") from None

    def client(self, number: int = 0) -> Client:
        return Client(self.urls[number], self.token, patience_s=60)

    def has_killed(self) -> bool:
        """Whether some process died as by `kill -9`, other than by the test's own hand."""
        return any(kept.was_killed for kept in [*self.workers, *self.gateways])

    def logs(self) -> str:
        """What the processes said last, for a failed test."""
        return "\n".join(f"--- {kept.name} {kept.deaths}\n{kept.tail()}" for kept in [*self.gateways, *self.workers])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
