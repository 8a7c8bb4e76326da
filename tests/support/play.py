"""One run with a secret in each field of each type of event, who reads it in which role, and what each may be sent.

Promises that `check` and `check_events` find both what was sent and should not have been, and what is missing: a test
that hides everything proves nothing. What may be sent is read from `audiences`, never from the product.
"""

import secrets
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec

from tests.support.audiences import BARE, ROLES, SPILLS, audience_at, names_subject, reads
from tests.support.gateway import Hand, RunningGateway, token
from tests.support.markers import Marks, Place, found
from tests.support.readers import Line
from tests.support.sharing import share_of
from tests.support.vocabulary import data_for
from towline.protocol import requests
from towline.protocol.codec import NewEntry
from towline.protocol.events import TERMINAL, Actor, Audience
from towline.protocol.store.api import NewRun

PUBLISHED: Final[tuple[Audience, ...]] = ("viewer", "collaborator", "operator")
"""Audiences of unfinished texts and of published values: entries `text/…` and `value/…`."""


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
            self.marks.forget(name, "deciders", "exclude")
            deciders = ["user:named", f"user:{self.marks.text('deciders.0')}"]
            data = msgspec.structs.replace(data, deciders=deciders, exclude=[])
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
