"""Hostile bodies, frames, ids, cursors and tokens: only problems or close codes come out, and nothing is appended."""

import asyncio
import random
import string
from typing import Any

import msgspec
import pytest

from tests.support.gateway import RunningGateway, Wire
from towline.protocol.commands import COMMANDS
from towline.protocol.errors import CODES
from towline.protocol.frames import CLIENT_OPS

pytestmark = pytest.mark.store

CLOSES = {1007, 1009, 4500, 4501}


def junk(dice: random.Random, depth: int = 0) -> Any:
    """Any JSON value, with a liking for what breaks decoders."""
    kind = dice.randrange(9 if depth < 4 else 7)
    match kind:
        case 0:
            return dice.choice([None, True, False])
        case 1:
            return dice.choice([0, -1, 1, 2**31, 2**53, 2**63, 2**64 - 1, -(2**63), 1.5, -0.0, 1e308])
        case 2:
            return "".join(dice.choice(string.printable) for _ in range(dice.randrange(12)))
        case 3:
            return dice.choice(["", "\0", "‮", "{tl:07}", "../..", "a" * 300, "latest", "0", "1-1", "-1", "run_", "💥"])
        case 4:
            return dice.choice(["ana", "user:ana", "applied", "nudge", "toy", "apr_1"])
        case 5 | 6:
            return f"{dice.randrange(-2, 2**34)}-{dice.randrange(-2, 2**34)}"
        case 7:
            return [junk(dice, depth + 1) for _ in range(dice.randrange(4))]
        case _:
            return {str(junk(dice, 4)): junk(dice, depth + 1) for _ in range(dice.randrange(4))}


MEMBERS = [
    *("id", "run", "after", "limit", "include", "type", "data", "command_id", "wait", "timeout_ms", "not_after"),
    *("token", "ticket", "feed", "filter", "workflow", "input", "labels", "headline", "budget", "queue", "scope"),
    *("permission_mode", "reason"),
]


def body_of(dice: random.Random) -> dict[str, Any]:
    return {name: junk(dice) for name in dice.sample(MEMBERS, dice.randrange(6))}


async def appended(gateway: RunningGateway, runs: list[str]) -> int:
    return sum(cursor.seq for cursor in (await gateway.store.heads(runs)).values())


def check_problem(problem: dict[str, Any]) -> None:
    status, title = CODES[problem["code"]]
    assert problem["code"] not in ("internal", "unavailable"), problem
    assert (problem["status"], problem["title"]) == (status, title)
    assert problem["request_id"]


@pytest.mark.parametrize("seed", range(4))
async def test_hostile_frames(gateway: RunningGateway, seed: int) -> None:
    dice = random.Random(seed)
    run = await gateway.start()
    before = await appended(gateway, [run])
    for _ in range(25):
        async with gateway.socket() as wire:
            for _ in range(8):
                frame = {**body_of(dice), "op": dice.choice([*CLIENT_OPS, str(junk(dice))])}
                if dice.random() < 0.5:
                    frame["run"] = run
                if frame["op"] == "command" and dice.random() < 0.7:
                    frame["type"] = dice.choice(["signal", "approve", "respond", "pause", "nope"])
                if frame.get("type") == "cancel" or frame["op"] == "ping":
                    continue
                await wire.connection.send(msgspec.json.encode(frame).decode())
            await wire.send(op="ping", id="end")
            await _drained(wire)
    assert await appended(gateway, [run]) == before
    assert gateway.services.hub.followed <= 1


async def _drained(wire: Wire) -> None:
    """Reads until the last pong or the close; everything in between is a frame of ours."""
    while True:
        frame = await wire.next()
        if frame["op"] in ("problem", "receipt") and frame.get("problem"):
            check_problem(frame["problem"])
        if frame["op"] == "bye":
            assert frame["code"] in CLOSES, frame
            assert await wire.closed() == frame["code"]
            return
        if frame == {"op": "pong", "id": "end"}:
            return


@pytest.mark.parametrize("seed", range(2))
async def test_hostile_texts(gateway: RunningGateway, seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(30):
        async with gateway.socket(hello=dice.random() < 0.5) as wire:
            text = bytes(dice.randrange(256) for _ in range(dice.randrange(60)))
            await wire.connection.send(text, text=dice.random() < 0.8)
            assert await wire.closed() in CLOSES


NEED_NO_DATA = {"cancel", "pause", "resume"}
"""Commands that are valid whatever they carry."""


@pytest.mark.parametrize("seed", range(3))
async def test_hostile_requests(gateway: RunningGateway, seed: int) -> None:
    dice = random.Random(seed)
    run = await gateway.start()
    before = await appended(gateway, [run])
    paths = ["", "/events", "/artifacts", "/artifacts/{}", "/requests/{}", "/commands/{}", "/payloads/{}"]

    def quoted() -> str:
        text = str(junk(dice)).encode()
        return "".join(f"%{byte:02x}" for byte in text)

    async def send() -> None:
        if dice.random() < 0.5:
            params = {name: str(junk(dice)) for name in dice.sample(["after", "limit", "status", "page", "label"], 2)}
            name = dice.choice([run, run, quoted() or "x"])
            path = f"/v1/runs/{name}{dice.choice(paths).format(quoted() or 'x')}"
            answer = await gateway.http.get(dice.choice([path, "/v1/runs"]), params=params)
        else:
            body: Any = body_of(dice)
            if dice.random() < 0.3:
                body = junk(dice)
            elif dice.random() < 0.7:
                body = {**body, "type": dice.choice([*sorted(set(COMMANDS) - NEED_NO_DATA), "nope"])}
            if isinstance(body, dict) and body.get("workflow") == "toy":
                body["input"] = 5
            path = dice.choice([f"/v1/runs/{run}/commands", "/v1/runs"])
            answer = await gateway.http.post(path, json=body, headers={"Authorization": _credential(gateway, dice)})
        assert answer.headers["towline-request-id"]
        if answer.status_code >= 400:
            check_problem(answer.json())
        else:
            assert answer.status_code == 200, answer.text

    for _ in range(40):
        await asyncio.gather(*(send() for _ in range(4)))
    assert await appended(gateway, [run]) == before
    assert len((await gateway.http.get("/v1/runs")).json()["items"]) == 1


def _credential(gateway: RunningGateway, dice: random.Random) -> str:
    good = str(gateway.http.headers["authorization"])
    if dice.random() < 0.6:
        return good
    at = dice.randrange(len(good))
    return dice.choice([good[:at], good[:at] + dice.choice("A.= -") + good[at + 1 :], "Bearer " + "x" * 9000])
