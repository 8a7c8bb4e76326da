"""The client's shell over real sockets, against a server that a test scripts frame by frame.

What only a real gateway shows (resume between two gateways, commands that reach a worker) stands beside this.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve

from tests.support.client_peer import events
from towline.protocol.client.connect import Client
from towline.protocol.client.failures import PlaceLost, SubscriptionOver, Unreachable, problem_in
from towline.protocol.errors import ProblemError


class Script:
    """One socket of the scripted server."""

    def __init__(self, socket: ServerConnection) -> None:
        self.socket = socket

    async def receive(self, op: str) -> dict[str, Any]:
        while True:
            frame = json.loads(await self.socket.recv())
            if frame["op"] == op:
                return dict(frame)

    async def send(self, *frames: dict[str, Any]) -> None:
        for frame in frames:
            await self.socket.send(json.dumps(frame))

    async def welcome(self) -> None:
        await self.receive("hello")
        await self.send({"op": "welcome", "protocol": 1, "heartbeat_ms": 25_000})

    async def place(self, cursor: str, recovery: str = "resumed", **members: Any) -> dict[str, Any]:
        asked = await self.receive("subscribe")
        placed = {"op": "subscribed", "id": asked["id"], "run": asked["run"], "recovery": recovery, "cursor": cursor}
        await self.send(placed | members)
        return asked

    async def end(self, cursor: str) -> None:
        await self.send({"op": "end", "run": "r", "cursor": cursor, "status": "completed"})
        await self.socket.wait_closed()


Scene = Callable[[Script], Awaitable[None]]


@asynccontextmanager
async def scripted(*scenes: Scene) -> AsyncIterator[Client]:
    """A client of a server that plays one scene a socket, and repeats the last."""
    played = list(scenes)

    async def handler(socket: ServerConnection) -> None:
        await (played.pop(0) if len(played) > 1 else played[0])(Script(socket))

    async with serve(handler, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with Client(f"http://127.0.0.1:{port}", "tok", patience_s=0.2) as client:
            yield client


async def test_an_iteration_goes_on_over_a_lost_socket_and_ends_with_the_run() -> None:
    asked = []

    async def breaks_off(script: Script) -> None:
        await script.welcome()
        asked.append((await script.place("0"))["after"])
        await script.send(events("r", 1, 2))
        script.socket.transport.abort()

    async def ends(script: Script) -> None:
        await script.welcome()
        asked.append((await script.place("2-7"))["after"])
        await script.send(events("r", 3))
        await script.end("3-7")

    async with scripted(breaks_off, ends) as client:
        stream = client.events("r")
        assert [event.seq async for event in stream] == [1, 2, 3]
        assert (stream.status, stream.cursor) == ("completed", "3-7")
    assert asked == ["0", "2-7"]


async def test_the_cursor_moves_only_once_a_whole_batch_was_taken() -> None:
    async def scene(script: Script) -> None:
        await script.welcome()
        await script.place("0")
        await script.send(events("r", 1, 2))
        await script.socket.wait_closed()

    async with scripted(scene) as client:
        stream, cursors = client.events("r"), []
        async for event in stream:
            cursors.append(stream.cursor)
            if event.seq == 2:
                break
        assert cursors == ["0", "0"]


async def test_a_gap_is_raised_unless_somebody_takes_it() -> None:
    async def scene(script: Script) -> None:
        await script.welcome()
        for _ in range(2):
            await script.place("0", "reset", recovery_code="diverged")
            await script.send(events("r", 1))
        await script.end("1-7")

    async with scripted(scene) as client:
        with pytest.raises(PlaceLost, match="diverged"):
            await anext(client.events("r", "9-9"))
        placed = list[str]()
        stream = client.events("r", "9-9", on_place=lambda place: placed.append(place.recovery))
        assert [event.seq async for event in stream] == [1]
        assert placed == ["reset"]


async def test_a_reader_that_does_not_read_is_held_and_loses_nothing() -> None:
    total, batch = 5_000, 500

    async def scene(script: Script) -> None:
        await script.welcome()
        sent = 0
        while sent < total:
            await script.place("0" if sent == 0 else f"{sent}-7")
            while sent < total:
                await script.send(events("r", *range(sent + 1, sent + batch + 1)))
                sent += batch
                frame = {}
                if sent % 2_500 == 0 and sent < total:
                    frame = await script.receive("unsubscribe")
                if frame:
                    # The client stopped somewhere before; it says where it stands when it comes back.
                    await script.send({"op": "unsubscribed", "run": "r", "code": "requested"})
                    break
        await script.end(f"{total}-7")

    async with scripted(scene) as client:
        stream = client.events("r")
        seqs = [event.seq async for event in stream]
    assert seqs == list(range(1, total + 1))


async def test_a_command_has_its_receipt_over_a_lost_socket() -> None:
    ids = []

    async def breaks_off(script: Script) -> None:
        await script.welcome()
        ids.append((await script.receive("command"))["command_id"])
        script.socket.transport.abort()

    async def answers(script: Script) -> None:
        await script.welcome()
        command = await script.receive("command")
        ids.append(command["command_id"])
        await script.send({"op": "receipt", "id": command["id"], "status": "accepted", "seq": 4, "duplicate": True})
        await script.socket.wait_closed()

    async with scripted(breaks_off, answers) as client:
        receipt = await client.signal("r", "go")
    assert receipt["seq"] == 4
    assert ids[0] == ids[1]


async def test_a_refused_command_raises_its_problem() -> None:
    async def scene(script: Script) -> None:
        await script.welcome()
        command = await script.receive("command")
        problem = {"code": "run_closed", "status": 409, "detail": "The run has ended."}
        await script.send({"op": "receipt", "id": command["id"], "status": "refused", "problem": problem})
        await script.socket.wait_closed()

    async with scripted(scene) as client:
        with pytest.raises(ProblemError, match="run_closed"):
            await client.approve("r", "apr_1", "sha256:0")


async def test_a_bad_credential_ends_streams_and_commands() -> None:
    async def scene(script: Script) -> None:
        await script.receive("hello")
        await script.send({"op": "bye", "code": 4501, "reason": "the token has expired"})
        await script.socket.close(4501)

    async with scripted(scene) as client:
        with pytest.raises(ProblemError, match="expired"):
            await anext(client.events("r"))
        with pytest.raises(ProblemError, match="unauthenticated"):
            await client.send("r", "cancel")


async def test_a_new_credential_is_fetched_when_the_server_asks() -> None:
    tokens = []

    async def ends(script: Script) -> None:
        tokens.append((await script.receive("hello"))["token"])
        await script.socket.close(4005)

    async def goes_on(script: Script) -> None:
        tokens.append((await script.receive("hello"))["token"])
        await script.send({"op": "welcome"})
        await script.place("0")
        await script.end("0")

    async def new_token() -> str:
        return "tok2"

    async with scripted(ends, goes_on) as client:
        client._new_token = new_token
        assert [event async for event in client.events("r")] == []
    assert tokens == ["tok", "tok2"]


async def test_a_revoked_run_says_so() -> None:
    async def scene(script: Script) -> None:
        await script.welcome()
        await script.place("0")
        await script.send({"op": "unsubscribed", "run": "r", "code": "revoked"})
        await script.socket.wait_closed()

    async with scripted(scene) as client:
        with pytest.raises(SubscriptionOver, match="revoked"):
            await anext(client.events("r"))


async def test_nobody_there_is_told_with_the_address() -> None:
    async with Client("http://127.0.0.1:9", "tok", patience_s=0.1) as client:
        with pytest.raises(Unreachable, match=r"127\.0\.0\.1:9"):
            await client.get("r")


async def test_leaving_while_the_server_is_away_does_not_hang() -> None:
    async with Client("http://127.0.0.1:9", "tok", patience_s=0.1) as client:
        client.events("r")
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"code": "gone", "detail": "x"}, 410, "gone"),
        ({"code": "brand_new", "status": 409, "detail": "x"}, 409, "conflict"),
        ({"code": "too_large", "limit": "big"}, 413, "too_large"),
        (None, 502, "internal"),
        ([], 404, "not_found"),
    ],
)
def test_every_refusal_becomes_a_problem_with_a_known_code(body: Any, status: int, code: str) -> None:
    assert problem_in(body, status).problem.code == code
