"""Every row of the cursor table, on the socket and on pages, against a real log."""

import asyncio
from typing import Any

import pytest
import redis.asyncio

from tests.support.gateway import Hand, RunningGateway
from tests.support.waiting import wait_until
from towline.protocol.store.keys import RunKeys

pytestmark = pytest.mark.store


async def run_of(gateway: RunningGateway, notes: int) -> tuple[str, Hand, list[str]]:
    """A run with `notes` + 2 events, and the cursor of each (index 0 is the start)."""
    run = await gateway.start()
    hand = await gateway.hold(run)
    await hand.note(count=notes)
    cursors = ["0"]
    for seq in range(1, notes + 3):
        page = (await gateway.http.get(f"/v1/runs/{run}/events", params={"after": str(seq), "limit": 1})).json()
        entry = (await gateway.http.get(f"/v1/runs/{run}/events", params={"after": cursors[-1], "limit": 1})).json()
        assert entry["events"][0]["seq"] == seq
        cursors.append(entry["cursor"])
        assert page["recovery"] == "resumed"
    return run, hand, cursors


def answer(frame: dict[str, Any]) -> dict[str, Any]:
    return {
        name: frame[name]
        for name in ("recovery", "recovery_code", "lost", "skipped", "cursor", "head", "first_seq")
        if name in frame
    }


def other(cursor: str) -> str:
    seq, tag = cursor.split("-")
    return f"{seq}-{int(tag) ^ 1}"


async def test_each_row_on_the_socket(gateway: RunningGateway) -> None:
    run, _, at = await run_of(gateway, 7)
    resumed = {"recovery": "resumed", "head": 9, "first_seq": 1}
    rows: list[tuple[dict[str, Any], dict[str, Any], list[int]]] = [
        ({}, {**resumed, "cursor": at[9]}, []),
        ({"after": "latest"}, {**resumed, "cursor": at[9]}, []),
        ({"after": "0"}, {**resumed, "cursor": "0"}, list(range(1, 10))),
        ({"after": at[4]}, {**resumed, "cursor": at[4]}, [5, 6, 7, 8, 9]),
        ({"after": at[9]}, {**resumed, "cursor": at[9]}, []),
        ({"after": "4"}, {**resumed, "cursor": at[4]}, [5, 6, 7, 8, 9]),
        ({"after": "1"}, {**resumed, "cursor": at[1]}, list(range(2, 10))),
        ({"after": at[4], "limit": 5}, {**resumed, "cursor": at[4]}, [5, 6, 7, 8, 9]),
        (
            {"after": at[4], "limit": 4},
            {**resumed, "recovery": "snapshot", "recovery_code": "limited", "skipped": [5, 5], "cursor": at[5]},
            [6, 7, 8, 9],
        ),
        (
            {"after": "0", "limit": 1},
            {**resumed, "recovery": "snapshot", "recovery_code": "limited", "skipped": [1, 8], "cursor": at[8]},
            [9],
        ),
        (
            {"after": "12-5"},
            {**resumed, "recovery": "reset", "recovery_code": "ahead", "cursor": "0"},
            list(range(1, 10)),
        ),
        (
            {"after": "12"},
            {**resumed, "recovery": "reset", "recovery_code": "ahead", "cursor": "0"},
            list(range(1, 10)),
        ),
        (
            {"after": other(at[4])},
            {**resumed, "recovery": "reset", "recovery_code": "diverged", "cursor": "0"},
            list(range(1, 10)),
        ),
        (
            {"after": other(at[9]), "limit": 3},
            {**resumed, "recovery": "reset", "recovery_code": "diverged", "skipped": [1, 6], "cursor": at[6]},
            [7, 8, 9],
        ),
    ]
    async with gateway.socket() as wire:
        for asked, expected, seqs in rows:
            wire.frames.clear()
            subscribed = await wire.subscribe(run, **asked)
            live = await wire.until("live", run=run)
            assert answer(subscribed) == expected, asked
            assert [event["seq"] for event in wire.events()] == seqs, asked
            assert live["cursor"] == at[9]
            assert subscribed["projection"]["last_seq"] == 9


async def test_another_runs_cursor_has_diverged(gateway: RunningGateway) -> None:
    run, _, at = await run_of(gateway, 2)
    _, _, others = await run_of(gateway, 2)
    async with gateway.socket() as wire:
        assert (await wire.subscribe(run, after=others[3]))["recovery_code"] == "diverged"
    page = (await gateway.http.get(f"/v1/runs/{run}/events", params={"after": others[3]})).json()
    assert (page["recovery"], page["recovery_code"]) == ("reset", "diverged")
    assert [event["seq"] for event in page["events"]] == [1, 2, 3, 4]
    assert page["cursor"] == at[4]


@pytest.mark.parametrize("after", ["", "-1", "1.5", "1-2-3", "x", "99999999999999999999", "1-99999999999", 7, None, []])
async def test_what_is_no_cursor_names_the_field(gateway: RunningGateway, after: Any) -> None:
    run = await gateway.start()
    async with gateway.socket() as wire:
        await wire.send(op="subscribe", id="s", run=run, after=after)
        frame = await wire.until("problem")
        assert (frame["id"], frame["run"]) == ("s", run)
        assert (frame["problem"]["code"], frame["problem"]["field"]) == ("bad_request", "after")
        # Whoever may not read the run learns nothing, not even that.
        await wire.send(op="subscribe", id="t", run="run_" + "0" * 26, after=after)
        assert (await wire.until("problem", id="t"))["problem"]["code"] == "not_found"
    if isinstance(after, str):
        refused = await gateway.http.get(f"/v1/runs/{run}/events", params={"after": after})
        assert (refused.status_code, refused.json()["field"]) == (400, "after")


async def test_each_row_on_pages(gateway: RunningGateway) -> None:
    run, hand, at = await run_of(gateway, 7)

    async def page(**params: Any) -> dict[str, Any]:
        answer = await gateway.http.get(f"/v1/runs/{run}/events", params=params)
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json()
        return body

    def seqs(body: dict[str, Any]) -> list[int]:
        return [event["seq"] for event in body["events"]]

    whole = await page()
    assert (seqs(whole), whole["cursor"], whole["head"]) == (list(range(1, 10)), at[9], 9)
    assert (whole["first_seq"], whole["closed"], whole["recovery"]) == (1, False, "resumed")
    assert "recovery_code" not in whole
    part = await page(after=at[3], limit=2)
    assert (seqs(part), part["cursor"]) == ([4, 5], at[5])
    bare = await page(after="3", limit=2)
    assert (seqs(bare), bare["cursor"]) == ([4, 5], at[5])
    for after in ("latest", at[9], "9"):
        end = await page(after=after)
        assert (seqs(end), end["cursor"], end["recovery"]) == ([], at[9], "resumed")
    for after, code in (("40-1", "ahead"), ("40", "ahead"), (other(at[2]), "diverged")):
        reset = await page(after=after, limit=2)
        assert (reset["recovery"], reset["recovery_code"], seqs(reset)) == ("reset", code, [1, 2])
    await hand.complete()
    assert [(await page(after=a, limit=2))["closed"] for a in (at[7], at[8], "latest")] == [False, True, True]


async def test_a_page_waits_for_the_next_event(gateway: RunningGateway) -> None:
    run, hand, at = await run_of(gateway, 1)
    waiting = asyncio.create_task(
        gateway.http.get(f"/v1/runs/{run}/events", params={"after": at[3], "wait_ms": 30_000})
    )
    await wait_until(lambda: gateway.services.hub.followed, "the page to wait")
    await hand.note("now")
    body = (await waiting).json()
    assert [event["seq"] for event in body["events"]] == [4]
    shown = asyncio.create_task(
        gateway.http.get(f"/v1/runs/{run}", params={"after": body["cursor"], "wait_ms": 30_000})
    )
    await wait_until(lambda: gateway.services.hub.followed, "the Run to wait")
    await hand.note("again")
    assert (await shown).json()["last_seq"] == 5
    empty = (await gateway.http.get(f"/v1/runs/{run}/events", params={"after": "latest", "wait_ms": 1})).json()
    assert (empty["events"], empty["recovery"]) == ([], "resumed")
    assert empty["cursor"].startswith("5-")
    await wait_until(lambda: gateway.services.hub.followed == 0, "nothing to be followed any more")


async def test_a_store_put_back_sends_clients_away_to_ask_again(gateway: RunningGateway, redis_url: str) -> None:
    run, hand, at = await run_of(gateway, 6)
    keys = RunKeys.of(run)
    async with gateway.socket() as wire, redis.asyncio.Redis.from_url(redis_url) as client:
        await wire.subscribe(run, after="0")
        await wire.until("live")
        saved = {key: await client.dump(key) for key in (keys.log, keys.run, keys.side, keys.private)}
        await hand.note("lost", count=3)
        lost = str((await gateway.store.heads([run]))[run])
        await wire.until("events", cursor=lost)
        for key, value in saved.items():
            assert value is not None
            await client.restore(key, 0, value, replace=True)
        assert await wire.closed() == 4010
        assert wire.frames[-1]["op"] == "bye"
    async with gateway.socket() as wire:
        subscribed = await wire.subscribe(run, after=lost)
        assert (subscribed["recovery"], subscribed["recovery_code"]) == ("reset", "ahead")
        await wire.until("live")
        assert [event["seq"] for event in wire.events()] == list(range(1, 9))
        assert wire.frames[-1]["cursor"] == at[8]
