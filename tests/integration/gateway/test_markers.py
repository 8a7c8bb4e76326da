"""A secret in each field of each event and of the Run, looked for in all that each role is sent over each transport.

Nothing above a role may be in it, and what the role may see must be: a matrix that hides everything proves nothing.
The rows are made from the vocabulary and from the Run, so a new type or member without a row fails here. Each type
stands in the log with its own audience and with each of the three that a producer may give it.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import msgspec
import pytest

from tests.support.audiences import ROLES, ROWS, RUN_ROWS, SPILLS, audience_at, reads
from tests.support.folding import OWN
from tests.support.gateway import RunningGateway, Wire, running_gateway
from tests.support.markers import found
from tests.support.play import PUBLISHED, Play
from tests.support.readers import Line, Page, SocketReader, SseReader
from tests.support.waiting import wait_until
from towline.protocol import queries
from towline.protocol.deltas import Piece
from towline.protocol.events import EVENTS, TERMINAL, Audience
from towline.protocol.queries import PublishedValue
from towline.protocol.run_state import Run
from towline.protocol.times import to_wire

pytestmark = pytest.mark.store

AUDIENCES: Final[tuple[Audience | None, ...]] = (None, "viewer", "collaborator", "operator")


@pytest.fixture
async def gateway(redis_url: str, tmp_path: Path) -> AsyncIterator[RunningGateway]:
    async with running_gateway(redis_url, tmp_path) as gateway:
        gateway.is_never_pressed()
        yield gateway


def test_each_type_and_each_member_of_the_run_has_its_row() -> None:
    assert set(ROWS) == set(EVENTS)
    assert {type_ for type_, row in EVENTS.items() if row.spill} == set(SPILLS)
    assert set(RUN_ROWS) == set(Run.__struct_fields__) - {"audiences"}


LONG: Final = [
    *(type_ for type_ in ROWS if type_ not in TERMINAL | {"run.created", "approval.requested"}),
    "message.completed/reasoning",
    *(f"{type_}/ref" for type_ in SPILLS if type_ not in TERMINAL),
]
"""What is written to a run that lasts, after what `begin` writes."""
ENDINGS: Final = ("run.failed", "run.cancelled", "run.completed/ref")


@pytest.mark.parametrize("given", AUDIENCES)
async def test_nobody_is_sent_what_is_above_them_and_everybody_what_is_not(
    gateway: RunningGateway, given: Audience | None
) -> None:
    async with Play.on(gateway, given) as play:
        async with asyncio.TaskGroup() as reading:
            early = await streams_of(play, reading)
            for name in LONG:
                await play.write(name)
                await play.look()
            await check_members(play)
            await publish(play)
            whole = await play.get("operator", f"runs/{play.run}")
            late = await streams_of(play, reading)
            await all_texts(play, [*early, *late])
            await check_beside(play)
            await check_ending(play)
        for role, way, reader in late:
            shown = msgspec.json.encode(reader.begin.projection)
            play.check(role, f"subscribed on {way}", shown, play.visible(whole, shown))
        for role, way, reader in [*early, *late]:
            play.check_events(role, way, reader.raws)
            for frame in reader.heard:
                play.check(role, way, frame)


@pytest.mark.parametrize("given", AUDIENCES)
async def test_nor_how_a_run_ended(gateway: RunningGateway, given: Audience | None) -> None:
    for ending in ENDINGS:
        async with Play.on(gateway, given) as play:
            await play.write(ending)
            await play.look()
            for role in ROLES:
                play.check_events(role, ending, await pages(play, role))


Streams = list[tuple[str, str, SocketReader | SseReader]]


async def all_texts(play: Play, streams: Streams) -> None:
    """Returns once each reader has been sent all unfinished text that it may read."""
    for role, way, reader in streams:
        wanted = {m for m in play.texts() if play.may(role, m)}

        def has_all(reader: SocketReader | SseReader = reader, wanted: set[str] = wanted) -> bool:
            return wanted <= found(b"".join(reader.heard))

        await wait_until(has_all, f"the texts for {role} on {way}")


async def streams_of(play: Play, reading: asyncio.TaskGroup) -> Streams:
    """A socket and a stream in each role, with text, that read on to the end."""
    streams: Streams = []
    for role in ROLES:
        for way, kind in (("socket", SocketReader), ("sse", SseReader)):
            reader = kind(play.gateway, play.run, play.credentials[role], deltas=True)
            await reader.join("0")
            reading.create_task(reader.read())
            streams.append((role, way, reader))
    return streams


async def publish(play: Play) -> None:
    """Unfinished text and a value for queries, for each audience."""
    store, run = play.gateway.store, play.run
    side: dict[str, str] = {}
    for audience in PUBLISHED:
        play.marks.entry = f"text/{audience}"
        message, text = play.marks.text("message"), play.marks.text("text")
        piece = Piece(message, 1, 0, text, audience=audience)
        await store.publish_pieces(run, play.hand._claimed.fence, [piece], [piece])
        play.marks.entry = f"value/{audience}"
        value = msgspec.Raw(msgspec.json.encode(play.marks.json("value")))
        side[queries.field_of(audience)] = queries.encode(PublishedValue(value, audience, to_wire(1)))
    await play.hand.write(side=side)


async def check_members(play: Play) -> None:
    """Each member of the Run: whole for who may read what set it last, else null and named."""
    whole = msgspec.json.decode(await play.get("operator", f"runs/{play.run}"))
    assert set(whole) == set(RUN_ROWS) | OWN
    for role in ROLES:
        run = msgspec.json.decode(await play.get(role, f"runs/{play.run}"))
        for member, setter in RUN_ROWS.items():
            type_, _, path = (setter or "").partition(":")
            given: Audience | None = None if type_ == "run.created" else play.given
            is_open = setter is None or reads(role, audience_at(type_, path, given))
            if role == "share" and member == "owner":
                is_open = False
            if whole[member] is not None and (run[member] is not None) != is_open:
                play.wrong.append(f"{role}: {member} of the Run as {play.given} is {run[member]}")
            if not is_open and whole[member] is not None and member != "owner" and member not in run["redacted"]:
                play.wrong.append(f"{role}: {member} of the Run as {play.given} is not named in `redacted`")


async def pages(play: Play, role: str, query: str = "after=0&limit=1000") -> list[bytes]:
    body = msgspec.json.decode(await play.get(role, f"runs/{play.run}/events?{query}"), type=Page)
    return [bytes(raw) for raw in body.events]


async def check_beside(play: Play) -> None:
    """What stands beside events and the Run."""
    (request,) = (m for m in play.of("approval.requested") if play.place(m).path == "request")
    proposal = {m for m in play.of("approval.requested") if play.place(m).path.startswith("proposal.")}
    blockers = {m for m in play.of("blocker.raised") if play.place(m).path in ("title", "detail")}
    whole = await play.get("operator", f"runs/{play.run}")
    asked = {role for role in ROLES if reads(role, audience_at("approval.requested", "", play.given))}
    for role in ROLES:
        play.check_events(role, "page", await pages(play, role))
        made = {m for m in play.of("artifact.created") if play.place(m).path not in ("actor.id", "step")}
        play.check(role, "artifacts", await play.get(role, f"runs/{play.run}/artifacts"), made)
        await expect(play, role, f"runs/{play.run}/requests/{request}", role in {*asked, "named"}, proposal)
        for audience in PUBLISHED:
            value = play.of(f"value/{audience}")
            await expect(play, role, f"runs/{play.run}/queries/{audience}", reads(role, audience), value)
        if role != "share":
            must = proposal if role == "named" else blockers if role in ("owner", "operator") else set()
            play.check(role, "inbox", await play.get(role, "inbox"), must)
            items = msgspec.json.decode(await play.get(role, "runs?limit=200"))["items"]
            assert [item["id"] for item in items] == ([] if role == "named" else [play.run])
            for item in items:
                shown = msgspec.json.encode(item)
                play.check(role, "list", shown, play.visible(whole, shown))
    assert asked


async def expect(play: Play, role: str, path: str, is_open: bool, markers: set[str]) -> None:
    """An answer that is there for who may read it, and not for others."""
    headers = {"Authorization": f"Bearer {play.credentials[role]}"}
    answer = await play.gateway.http.get(f"/v1/{path}", headers=headers)
    if answer.status_code != (200 if is_open else 404):
        play.wrong.append(f"{role}, {path}: {answer.status_code} as {play.given}")
    if is_open:
        play.check(role, path, answer.content, markers)
    elif play.ours(answer.content):
        play.wrong.append(f"{role}, {path}: {answer.text}")


async def decide(play: Play, role: str, wire: Wire) -> None:
    """A decision that cannot be, and what is told of why."""
    (request,) = (m for m in play.of("approval.requested") if play.place(m).path == "request")
    digest = {m for m in play.of("approval.requested") if play.place(m).path == "digest"}
    data = {"request": request, "digest": "sha256:0", "answers": {}}
    for decision in ("approve", "reject"):
        await wire.send(op="command", id="c", run=play.run, type=decision, command_id=decision, data=data)
        answer = await wire.until("receipt")
        why = answer["problem"]
        assert why["code"] == ("digest_mismatch" if role == "named" else "forbidden"), answer
        sent = msgspec.json.encode(why).replace(request.encode(), b"")  # what they sent themselves
        play.check(role, f"problem of {decision}", sent, digest if role == "named" else set())


async def check_ending(play: Play) -> None:
    """The end, as those hear of it who wait: for a page, for the Run, for changes of any run."""
    cursor = str((await play.gateway.store.facts(play.run)).head)
    waits = {role: (await Line.to(play.gateway), await Line.to(play.gateway)) for role in ROLES}
    async with AsyncExitStack() as sockets:
        watching: dict[str, Wire] = {}
        for role in ROLES:
            if role != "share":
                watching[role] = await sockets.enter_async_context(play.gateway.socket(play.credentials[role]))
                await watching[role].send(op="watch", id="w", feed="runs")
                await watching[role].until("watching")
                await decide(play, role, watching[role])
            page, run = waits[role]
            page.ask(f"runs/{play.run}/events?after={cursor}&wait_ms=20000", play.credentials[role])
            run.ask(f"runs/{play.run}?after={cursor}&wait_ms=20000", play.credentials[role])
        await play.write("run.completed")
        await play.look()
        whole = await play.get("operator", f"runs/{play.run}")
        for role, (page, run) in waits.items():
            raws = [bytes(raw) for raw in msgspec.json.decode(await page.body(), type=Page).events]
            play.check_events(role, "long-poll", raws, first=max(play.entries))
            shown = await run.body()
            play.check(role, "GET run, waited for", shown, play.visible(whole, shown))
            page.abort()
            run.abort()
        for wire in watching.values():
            changed = await wire.until("changed", run=play.run)
            assert not play.ours(msgspec.json.encode(changed))
