"""A real gateway in this process, on a free port, over a real store; and a hand that writes runs as a worker would."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from towline.gateway.server import GatewayServer, address_of, bind, make_server
from towline.gateway.services import Services
from towline.gateway.settings import Settings
from towline.protocol import event_data as d
from towline.protocol import tokens
from towline.protocol.codec import NewEntry
from towline.protocol.cursor import Cursor
from towline.protocol.events import Actor
from towline.protocol.frames import SUBPROTOCOL
from towline.protocol.store.api import Claimed, Commit, Committed, Fence, WorkflowInfo
from towline.protocol.store.redis import RedisStore

SECRET = b"a secret of tests, long enough to sign with"

TOY = WorkflowInfo(
    name="toy",
    version="1",
    queue="default",
    input_schema={
        "type": "object",
        "properties": {"source": {"type": "object", "properties": {"path": {"type": "string"}}}},
    },
    signals={"nudge": {"type": "object", "properties": {"by": {"type": "integer"}}, "required": ["by"]}},
)


def token(subject: str = "ana", *, roles: Sequence[tokens.GlobalRole] = ("user",), **claims: Any) -> str:
    """A credential that the gateway of these tests takes."""
    return tokens.mint(SECRET, subject=subject, roles=roles, ttl_s=claims.pop("ttl_s", 3600), **claims)


class Wire:
    """One socket, frame by frame."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.frames: list[dict[str, Any]] = []

    async def send(self, **frame: Any) -> None:
        await self.connection.send(msgspec.json.encode(frame).decode())

    async def next(self) -> dict[str, Any]:
        """The next frame, heartbeats included."""
        async with asyncio.timeout(20):
            frame: dict[str, Any] = msgspec.json.decode(await self.connection.recv())
        self.frames.append(frame)
        return frame

    async def until(self, op: str, **members: Any) -> dict[str, Any]:
        """The next frame with this op (and these members); what came before stays in `frames`."""
        while True:
            frame = await self.next()
            if frame["op"] == op and all(frame.get(name) == value for name, value in members.items()):
                return frame
            assert frame["op"] != "bye", frame

    async def subscribe(self, run: str, **members: Any) -> dict[str, Any]:
        """Subscribes; the `subscribed` frame."""
        await self.send(op="subscribe", id="s", run=run, **members)
        return await self.until("subscribed", run=run)

    async def hello(self, credential: str | None = None) -> dict[str, Any]:
        """Says hello; the `welcome` frame."""
        await self.send(op="hello", token=credential or token())
        return await self.until("welcome")

    async def closed(self) -> int:
        """Reads on to the close; its code."""
        async with asyncio.timeout(20):
            with contextlib.suppress(ConnectionClosed):
                while True:
                    self.frames.append(msgspec.json.decode(await self.connection.recv()))
        assert self.connection.close_code is not None
        return self.connection.close_code

    def events(self) -> list[dict[str, Any]]:
        """All events that came."""
        return [event for frame in self.frames if frame["op"] == "events" for event in frame["events"]]


class RunningGateway:
    """A gateway that serves. `http` is a client with the credential of ana."""

    def __init__(self, url: str, server: GatewayServer) -> None:
        self.url = url
        self.server = server
        self.http = httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {token()}"}, timeout=40)

    @property
    def services(self) -> Services:
        services: Services = self.server._app.state.services
        return services

    @property
    def store(self) -> RedisStore:
        return self.services.store

    def is_never_pressed(self) -> None:
        """Nothing is shed from here on: for tests that load the machine and are about something else."""
        pressure = self.services.pressure
        pressure.receive = lambda sample: pressure.level  # type: ignore[method-assign]

    def as_(self, subject: str, **claims: Any) -> dict[str, str]:
        """Headers of another caller."""
        return {"Authorization": f"Bearer {token(subject, **claims)}"}

    @asynccontextmanager
    async def socket(self, credential: str | None = None, *, hello: bool = True, **more: Any) -> AsyncIterator[Wire]:
        """A socket that was welcomed; with `hello` False one that was only upgraded."""
        more = {"subprotocols": [SUBPROTOCOL], "compression": None, **more}
        address = self.url.replace("http://", "ws://") + "/v1/socket"
        async with connect(address, max_size=2**20, **more) as connection:
            wire = Wire(connection)
            if hello:
                await wire.hello(credential)
            yield wire

    async def start(self, **body: Any) -> str:
        """Starts a toy run as ana; its id."""
        await self.announce()
        answer = await self.http.post("/v1/runs", json={"workflow": "toy", "input": {}, **body})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    async def announce(self, workflow: WorkflowInfo = TOY) -> None:
        """Says that a worker has `workflow`."""
        await self.store.announce("tests", [workflow])

    async def hold(self, run: str, *, ttl_ms: int = 60_000) -> "Hand":
        """Claims `run` as a worker would and starts it."""
        claimed = await self.store.claim(run, nonce=secrets.token_hex(8), holder="tests", version="1", ttl_ms=ttl_ms)
        assert isinstance(claimed, Claimed), claimed
        hand = Hand(self.store, claimed, claimed.cursor)
        await hand.write(NewEntry("run.started", Actor("worker", "tests"), d.RunStarted(worker="tests")))
        return hand


class Hand:
    """Holds the lease of one run and writes to it."""

    def __init__(self, store: RedisStore, claimed: Claimed, seen: Cursor) -> None:
        self._store = store
        self._claimed = claimed
        self._number = 0
        self.seen = seen

    @property
    def run(self) -> str:
        return self._claimed.run

    @property
    def fence(self) -> Fence:
        return self._claimed.fence

    def commit(self, *entries: NewEntry, **more: Any) -> Commit:
        self._number += 1
        return Commit(
            run=self._claimed.run,
            queue="default",
            fence=self._claimed.fence,
            number=self._number,
            seen=self.seen,
            now_ms=self._store.now_ms(),
            entries=entries,
            **more,
        )

    async def write(self, *entries: NewEntry, **more: Any) -> Committed:
        """One commit."""
        return await self._store.commit(self.commit(*entries, **more))

    async def note(self, text: str = "noted", count: int = 1) -> Committed:
        """Appends `count` notes in one commit."""
        return await self.write(*[note(f"{text} {n}") for n in range(count)])

    async def complete(self, ending: NewEntry | None = None) -> Committed:
        """Ends the run, with `ending` or as completed."""
        data = d.RunCompleted(summary="done", claims=[], verified=None)
        self.seen = (await self._store.facts(self._claimed.run)).head
        return await self._store.close(self.commit(ending or NewEntry("run.completed", AGENT, data)))


AGENT = Actor("agent", "wf:toy")


def note(text: str) -> NewEntry:
    return NewEntry("progress.noted", AGENT, d.ProgressNoted(text=text))


@asynccontextmanager
async def running_gateway(store_url: str, folder: Path, **settings: Any) -> AsyncIterator[RunningGateway]:
    """A gateway on a free port until the block ends."""
    chosen = Settings(
        store_url=store_url,
        jwt_secret=SECRET,
        payloads=folder / "payloads",
        port=0,
        development=True,
        **{"drain_ms": 1000, "drain_window_ms": 1000, **settings},
    )
    listener = bind(chosen)
    address = address_of(listener)
    ready = asyncio.Event()
    server = make_server(chosen, listener, lambda _: ready.set())
    serving = asyncio.create_task(server._serve([listener]))
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait([serving, waiting], return_when=asyncio.FIRST_COMPLETED)
    if not ready.is_set():
        waiting.cancel()
        await serving
        raise AssertionError("the gateway did not start")
    gateway = RunningGateway(address, server)
    try:
        yield gateway
    finally:
        await gateway.http.aclose()
        server.should_exit = True
        await serving
