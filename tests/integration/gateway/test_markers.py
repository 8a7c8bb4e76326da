"""A secret in each field of each event and of the Run, looked for in all that each role is sent over each transport.

Nothing above a role may be in it, and what the role may see must be: a matrix that hides everything proves nothing.
The rows are made from the vocabulary and from the Run, so a new type or member without a row fails here. Each type
stands in the log with its own audience and with each of the three that a producer may give it.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from tests.support.audiences import BARE, ROLES, ROWS, RUN_ROWS, SPILLS, audience_at, names_subject, reads
from tests.support.folding import OWN
from tests.support.gateway import Hand, RunningGateway, Wire, running_gateway, token
from tests.support.markers import Marks, Place, found
from tests.support.readers import Line, Page, SocketReader, SseReader
from tests.support.sharing import share_of
from tests.support.vocabulary import data_for
from tests.support.waiting import wait_until
from towline.protocol import queries, requests
from towline.protocol.codec import NewEntry
from towline.protocol.deltas import Piece
from towline.protocol.events import EVENTS, TERMINAL, Actor, Audience
from towline.protocol.queries import PublishedValue
from towline.protocol.run_state import Run
from towline.protocol.store.api import NewRun
from towline.protocol.times import to_wire

pytestmark = pytest.mark.store

AUDIENCES: Final[tuple[Audience | None, ...]] = (None, "viewer", "collaborator", "operator")
PUBLISHED: Final[tuple[Audience, ...]] = ("viewer", "collaborator", "operator")


@pytest.fixture
async def gateway(redis_url: str, tmp_path: Path) -> AsyncIterator[RunningGateway]:
    async with running_gateway(redis_url, tmp_path) as gateway:
        gateway.is_never_pressed()
        yield gateway


def test_each_type_and_each_member_of_the_run_has_its_row() -> None:
    assert set(ROWS) == set(EVENTS)
    assert {type_ for type_, row in EVENTS.items() if row.spill} == set(SPILLS)
    assert set(RUN_ROWS) == set(Run.__struct_fields__) - {"audiences"}


class Play:
    """One run whose log holds each type once, with the audience `given`, and all that read it."""

    def __init__(self, gateway: RunningGateway, given: Audience | None) -> None:
        self.gateway = gateway
        self.given: Audience | None = given
        self.marks = Marks()
        self.run = "play-" + secrets.token_hex(8)
        self.credentials: dict[str, str] = {}
        self.lines: dict[str, Line] = {}
        self.entries: dict[int, str] = {}
        """By seq: which entry of the table stands there."""
        self.wrong: list[str] = []
        self.hand: Hand

    @classmethod
    @asynccontextmanager
    async def on(cls, gateway: RunningGateway, given: Audience | None) -> "AsyncIterator[Play]":
        """A run that has begun; at the end nothing was wrong."""
        play = cls(gateway, given)
        try:
            await play.begin()
            yield play
        finally:
            for line in play.lines.values():
                line.abort()
        assert not play.wrong, "\n" + "\n".join(sorted(set(play.wrong)))

    # --- what a role may be sent

    def may(self, role: str, marker: str, *, is_event: bool = False) -> bool:
        """Whether a role may be sent this marker; in an event, or (where more may be said) elsewhere."""
        place = self.marks.places[marker]
        type_, _, variant = place.entry.partition("/")
        if role == "share" and names_subject(type_, place.path):
            return False
        if place.path == "actor.id":
            return True
        if type_ in ("text", "value"):
            return reads(role, variant)  # type: ignore[arg-type]
        if role == "named" and type_ == "approval.requested" and not is_event:
            return True
        given: Audience | None = self.given if type_ != "run.created" else None
        if variant == "reasoning" and given is None:
            given = "operator"
        return reads(role, audience_at(type_, place.path, given))

    def of(self, entry: str) -> set[str]:
        return {marker for marker, place in self.marks.places.items() if place.entry == entry}

    def texts(self) -> set[str]:
        return {marker for audience in PUBLISHED for marker in self.of(f"text/{audience}")}

    def place(self, marker: str) -> Place:
        return self.marks.places[marker]

    def ours(self, sent: bytes) -> set[str]:
        return found(sent) & self.marks.places.keys()

    def note(self, role: str, where: str, markers: Iterable[str], what: str) -> None:
        """Something is wrong."""
        for place in map(self.place, markers):
            self.wrong.append(f"{role}, {where}: {place.path} of {place.entry} as {self.given} {what}")

    def check(self, role: str, where: str, sent: bytes, must: set[str] | None = None) -> None:
        """Nothing in `sent` is above the role, and of `must` all that is not."""
        seen = self.ours(sent)
        bare = {m for m in seen if (self.place(m).entry.partition("/")[0], self.place(m).path) in BARE}
        self.note(role, where, (m for m in seen - bare if not self.may(role, m)), "was sent")
        self.note(role, where, (m for m in (must or set()) - seen if self.may(role, m)), "is missing")

    # --- what is written

    async def begin(self) -> None:
        self.marks.entry = "run.created"
        created = NewEntry(
            "run.created", Actor("user", self.marks.text("actor.id")), data_for("run.created", self.marks)
        )
        new = NewRun(self.run, secrets.token_hex(8), "f", "ana", "toy", "1", "default", created)
        await self.gateway.store.create_run(new)
        self.entries[1] = "run.created"
        for name in ("viewer", "collaborator"):
            put = await self.gateway.http.put(f"/v1/runs/{self.run}/grants/user:{name}", json={"role": name})
            assert put.status_code == 200, put.text
        self.credentials = {
            **{name: token(name) for name in ROLES}, "operator": token("root", roles=["operator"]),
            "owner": token("ana"), "share": (await share_of(self.gateway, self.run, deltas=True))["token"],
        }  # fmt: skip
        self.hand = await self.gateway.hold(self.run)
        await self.write("approval.requested")  # from here on `named` may read
        for role in ROLES:
            self.lines[role] = await Line.to(self.gateway)

    def entry(self, name: str) -> NewEntry:
        """An entry of the table, with markers. `/ref`: its largest member lies elsewhere."""
        type_, _, variant = name.partition("/")
        self.marks.entry = name
        data = data_for(type_, self.marks)
        more: dict[str, Any] = {}
        if type_ == "approval.requested":
            data = msgspec.structs.replace(data, deciders=["user:named"], exclude=[])
            self.marks.forget(name, "deciders", "exclude")
        if type_ == "budget.changed":
            self.marks.forget(name, "caps")
        if variant == "ref":
            member = SPILLS[type_]
            self.marks.forget(name, member)
            data = msgspec.structs.replace(data, **{member: "" if type_ == "progress.noted" else None})
            more["ref"] = self.marks.text(member)
        if variant == "reasoning":
            data = msgspec.structs.replace(data, kind="reasoning")
        return NewEntry(type_, Actor("agent", self.marks.text("actor.id")), data, audience=self.given, **more)

    async def write(self, name: str) -> None:
        entry = self.entry(name)
        more: dict[str, Any] = {}
        if entry.type == "approval.requested":
            more = {
                "side": requests.side_fields(requests.opened(entry.data)),
                "inbox_add": {entry.data.request: ["user:named"]},
            }
        elif entry.type in ("blocker.raised", "run.blocked"):
            blocker = entry.data.id if entry.type == "blocker.raised" else entry.data.blocker.id
            more = {"inbox_add": {f"blocker:{blocker}": ["user:ana", "role:operator"]}}
        if entry.type in TERMINAL:
            written = await self.hand.complete(entry)
        else:
            written = await self.hand.write(entry, **more)
        self.entries[written.cursor.seq] = name

    # --- what is read

    async def get(self, role: str, path: str) -> bytes:
        """The body of an answer that must be 200."""
        self.lines[role].ask(path, self.credentials[role])
        return await self.lines[role].body()

    async def look(self) -> None:
        """The Run, as everybody reads it now."""
        whole = await self.get("operator", f"runs/{self.run}")
        for role in ROLES:
            sent = await self.get(role, f"runs/{self.run}")
            self.check(role, f"GET run at {max(self.entries)}", sent, self.visible(whole, sent))

    def visible(self, whole: bytes, sent: bytes) -> set[str]:
        """The markers in those members of a Run that this reader is shown at all."""
        members, shown = msgspec.json.decode(whole, type=dict[str, msgspec.Raw]), msgspec.json.decode(sent)
        return {m for name, raw in members.items() if shown[name] is not None for m in self.ours(bytes(raw))}

    def check_events(self, role: str, where: str, raws: list[bytes], *, first: int = 1) -> None:
        """Of each event exactly what the role may see of it."""
        assert raws, (role, where)
        for seq, raw in enumerate(raws, first):
            name = self.entries.get(seq)
            wanted = {m for m in self.of(name) if self.may(role, m, is_event=True)} if name else set()
            seen = self.ours(raw)
            self.note(role, f"{where} {seq}", seen - wanted, "was sent")
            self.note(role, f"{where} {seq}", wanted - seen, "is missing")


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
        for role, wire in watching.items():
            changed = await wire.until("changed", run=play.run)
            play.check(role, "watch", msgspec.json.encode(changed))
            assert not play.ours(msgspec.json.encode(wire.frames))
