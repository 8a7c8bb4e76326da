"""The channel alone: what a worker without our engine asks to have written becomes one commit of its lease.

Promises that what belongs to an event travels in its commit (the state of an approval, a timer, the outcome of a
command), and that a run it ends ends as any other: what is open is rejected or withdrawn, what had begun is listed,
and whether its claims are proven is found here. Leaves to `appending` what such a worker may ask, atomicity to the
scripts. Read `openends` first.
"""

from collections.abc import Sequence
from typing import Any, Final, Literal, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from towline.protocol import event_data as d
from towline.protocol import inbox, requests, schemas, times
from towline.protocol.appending import Append, CommandResult, EventToAppend, Release, check_order, entry_of, typed
from towline.protocol.approvals import digest_of, is_decider_entry
from towline.protocol.codec import NewEntry
from towline.protocol.commands import COMMANDS
from towline.protocol.cursor import Cursor
from towline.protocol.errors import problem
from towline.protocol.events import TERMINAL, Actor, Event
from towline.protocol.evidence import Observed
from towline.protocol.ids import is_command_id
from towline.protocol.store import api
from towline.protocol.store.deciding import Outcome
from towline.protocol.store.openends import SYSTEM, OpenCommand, OpenEnds
from towline.protocol.store.redis import RedisStore
from towline.protocol.values import WaitKind, WaitRef

_ASKING: Final = frozenset({"approval.requested", "input.requested"})
OPEN_REQUESTS: Final = 50
"""How many requests may be open at once: a run that ends withdraws all of them in one step."""

_RESULTS: Final = frozenset({"tool.finished", "tool.failed", "message.completed", "checkpoint.saved"})
_SNAPSHOT_EVERY: Final = 64


Ending = Literal["close", "waiting", "blocked", "paused", "hand_over"]


class Prepared(Struct, frozen=True):
    """A commit, and with which call it is written: as an ending, or (None) as a plain commit."""

    commit: api.Commit
    ending: Ending | None


class _Book:
    """What the whole log says that a commit must know."""

    def __init__(self) -> None:
        self.ends = OpenEnds()
        self.observed = Observed()
        self.checkpoint: int | None = None
        self.cancel: Event | None = None
        self.pause: Event | None = None
        self.asked: set[str] = set()
        """Requests that were ever made."""

    def observe(self, event: Event) -> None:
        self.ends.observe(event)
        self.observed.observe(event)
        if event.type == "checkpoint.saved":
            self.checkpoint = event.seq
        elif event.type == "cancel.requested":
            self.cancel = event
        elif event.type == "command.received" and event.data["type"] == "pause":
            self.pause = event
        elif event.type == "approval.requested":
            self.asked.add(msgspec.convert(event.data, d.ApprovalRequested).request)
        elif event.type == "input.requested":
            self.asked.add(msgspec.convert(event.data, d.InputRequested).request)
        elif event.type == "artifact.created":
            self.observed.note_artifact(msgspec.convert(event.data, d.ArtifactCreated).artifact)


async def _read_book(store: RedisStore, run: str) -> _Book:
    book = _Book()
    async for entry in store.entries(run):
        book.observe(entry.event())
    return book


async def open_commands(store: RedisStore, run: str) -> list[int]:
    """Seqs of the accepted commands of `run` that have no outcome yet."""
    return sorted((await _read_book(store, run)).ends.commands)


async def prepare(
    store: RedisStore, loaded: api.Loaded, fence: api.Fence, number: int, asked: Append, *, seen: Cursor
) -> Prepared:
    """The commit that writes what was `asked`, as the `number`-th of its lease. Raises `ProblemError`."""
    facts, head_seq = loaded.facts, loaded.run.last_seq
    if facts.paused and any(event.type == "tool.started" for event in asked.events):
        raise problem("held", "The run pauses: start nothing, and give the lease back with `release`.")
    events = [typed(event, position, head_seq) for position, event in enumerate(asked.events)]
    check_order(events, asked)
    commit = api.Commit(run=facts.run, queue=facts.queue, fence=fence, number=number, seen=seen, now_ms=store.now_ms())
    needs_book = asked.outcomes or asked.release or any(e.type in TERMINAL or _opens(e) for e in events)
    book = await _read_book(store, facts.run) if needs_book else _Book()
    actors = Actor("agent", f"wf:{facts.workflow}"), Actor("worker", facts.holder)
    entries: list[NewEntry] = []
    side: dict[str, str] = {}
    arm: list[api.Timer] = []
    waits: dict[str, list[str]] = {}
    for position, event in enumerate(events):
        if event.type in TERMINAL:
            break  # comes last, behind all that it ends
        where = f"events[{position}]"
        entry = entry_of(event, actors)
        if entry.type == "approval.requested":
            entry = replace(entry, data=_asked(event.data, book, where))
            side.update(requests.side_fields(requests.opened(entry.data)))
            waits[entry.data.request] = inbox.whom(entry.data.deciders, facts.owner)
        elif entry.type == "input.requested":
            _check_input(entry.data, book, where)
            side.update(requests.side_fields(requests.asked(entry.data)))
            waits[entry.data.request] = inbox.whom(entry.data.answerers, facts.owner)
        elif entry.type == "run.blocked":
            waits.update(inbox.blocked(entry.data.blocker.id, facts.owner))
        elif entry.type == "timer.started":
            arm.append(api.Timer("timer", entry.data.timer, _time(entry.data.due_at, f"{where}.data.due_at")))
        entries.append(entry)
        book.observe(Event(head_seq + len(entries), "", entry.type, entry.actor, entry.data, cause=entry.cause))
    results = _results(asked.outcomes, book)
    entries += [entry for entry, _, _ in results]
    commit = replace(
        commit,
        arm=arm,
        inbox_add=waits,
        outcomes=[outcome for _, outcome, _ in results],
        applied=sum(counts for _, _, counts in results),
        recorded=any(entry.type in _RESULTS for entry in entries),
    )
    ending: Ending | None = None
    if events and events[-1].type in TERMINAL:
        ending = "close"
        commit = await _closing(store, commit, book, side, entries, entry_of(_ended(events[-1], book), actors))
    elif asked.release is not None:
        is_pausing = facts.paused == "asked"
        more, timers, ending = _letting_go(asked.release, entries, book, fence, number, is_pausing=is_pausing)
        entries += [NewEntry(type_, actors[0], data) for type_, data in more]
        commit = replace(commit, arm=[*arm, *timers])
    is_due = ending is not None or head_seq // _SNAPSHOT_EVERY != (head_seq + len(entries)) // _SNAPSHOT_EVERY
    return Prepared(replace(commit, entries=entries, side=side, snapshot=loaded.run if is_due else None), ending)


def _opens(event: EventToAppend) -> bool:
    return event.type in _ASKING


def _check_request(data: d.ApprovalRequested | d.InputRequested, book: _Book, where: str) -> None:
    if not is_command_id(data.request):
        raise problem("bad_request", "A request's id is 1 to 128 of [A-Za-z0-9._:-].", field=f"{where}.data.request")
    if data.request in book.asked:
        raise problem("conflict", "The run asked under this id before.", field=f"{where}.data.request")
    if len(book.ends.requests) >= OPEN_REQUESTS:
        raise problem("conflict", "Too many requests are open; wait for answers.", limit=OPEN_REQUESTS)
    if data.expires_at is not None:
        _time(data.expires_at, f"{where}.data.expires_at")


def _check_input(data: d.InputRequested, book: _Book, where: str) -> None:
    """Raises `bad_request` for a question that nobody could answer, or that no value would fit."""
    _check_request(data, book, where)
    if not data.answerers or not all(is_decider_entry(entry) for entry in data.answerers):
        raise problem(
            "bad_request",
            "Answerers are written as user:<sub>, role:<role> or group:<name>, and there is one.",
            field=f"{where}.data.answerers",
        )
    schemas.check_schema(data.schema, field=f"{where}.data.schema")
    if data.on_expire == "default":
        schemas.check(data.default, data.schema, field=f"{where}.data.default")


def _asked(data: d.ApprovalRequested, book: _Book, where: str) -> d.ApprovalRequested:
    """The approval as it can be decided. Raises `bad_request` for one that nobody could decide."""
    _check_request(data, book, where)
    if data.proposal is None:
        raise problem("bad_request", "An approval shows a proposal.", field=f"{where}.data.proposal")
    for name in ("deciders", "exclude"):
        if not all(is_decider_entry(entry) for entry in getattr(data, name)):
            raise problem(
                "bad_request",
                "Deciders are written as user:<sub>, role:<role> or group:<name>.",
                field=f"{where}.data.{name}",
            )
    left = [entry for entry in data.deciders if entry not in data.exclude]
    people = len(set(left)) if all(entry.startswith("user:") for entry in left) else data.quorum
    if not left or not 1 <= data.quorum <= people:
        raise problem("bad_request", "Nobody could decide this.", field=f"{where}.data.deciders")
    digest = digest_of(data.request, data.proposal, data.questions)
    if data.digest not in ("", digest):
        raise problem("digest_mismatch", "The digest is not that of this request; leave it out.", expected=digest)
    return replace(data, digest=digest)


def _time(text: str, field: str) -> int:
    try:
        return times.from_wire(text)
    except (ValueError, OverflowError):
        raise problem("bad_request", "Not a time such as 2026-01-31T09:30:00.000Z.", field=field) from None


def _results(asked: Sequence[CommandResult], book: _Book) -> list[tuple[NewEntry, api.CommandOutcome, bool]]:
    """Each outcome as its entry, what a repeat of the command is told, and whether the command was counted."""
    made = []
    for position, result in enumerate(asked):
        command = _open_command(result, book, position)
        del book.ends.commands[command.seq]
        data: d.CommandApplied | d.CommandRejected
        if result.status == "applied":
            data = d.CommandApplied(
                command_id=command.command_id, type=command.type, effect=result.effect, result=result.result
            )
            receipt = Outcome("applied", effect=result.effect, result=result.result)
        else:
            code, text = result.code or "rejected", result.text or "The run did not take it."
            data = d.CommandRejected(command_id=command.command_id, type=command.type, code=code, text=text)
            receipt = Outcome("rejected", code=code, text=text)
        outcome = api.CommandOutcome(command.subject, command.command_id, msgspec.json.encode(receipt).decode())
        entry = NewEntry(f"command.{result.status}", SYSTEM, data, cause=command.seq)
        made.append((entry, outcome, COMMANDS[command.type].counts))
    return made


def _open_command(result: CommandResult, book: _Book, position: int) -> OpenCommand:
    for command in book.ends.commands.values():
        if command.command_id == result.command_id and result.seq in (None, command.seq):
            return command
    raise problem(
        "conflict", "No accepted command of this id waits for an outcome.", field=f"outcomes[{position}].command_id"
    )


def _ended(event: EventToAppend, book: _Book) -> EventToAppend:
    """The terminal event with what only the log can say."""
    match event.data:
        case d.RunCompleted() as data:
            return replace(event, data=replace(data, verified=book.observed.are_proven(data.claims)))
        case d.RunFailed() as data:
            return replace(event, data=replace(data, checkpoint=book.checkpoint, abandoned=book.ends.abandoned()))
        case d.RunCancelled() as data:
            asked = None if book.cancel is None else msgspec.convert(book.cancel.data, d.CancelRequested)
            by, reason = ("system", data.reason) if asked is None else (asked.by, data.reason or asked.reason)
            cause = event.cause if book.cancel is None else book.cancel.seq
            data = replace(data, by=by, reason=reason, forced=False, abandoned=book.ends.abandoned())
            return replace(event, data=data, cause=cause)
        case _:
            return event


async def _closing(
    store: RedisStore,
    commit: api.Commit,
    book: _Book,
    side: dict[str, str],
    entries: list[NewEntry],
    terminal: NewEntry,
) -> api.Commit:
    """Puts what the end of a run brings about into `entries` and `side`, with the terminal event last."""
    entries += [*await store.partial_messages(commit.run, entries), *book.ends.last_entries(), terminal]
    fields = [requests.state_field(request) for request in book.ends.requests]
    states = {**await store.side_fields(commit.run, fields), **{name: side[name] for name in fields if name in side}}
    side.update(requests.withdrawals([requests.decode(text) for text in states.values()]))
    return replace(
        commit,
        outcomes=[*commit.outcomes, *book.ends.outcomes()],
        applied=commit.applied + sum(command.counts for command in book.ends.commands.values()),
        arm=(),
        inbox_add={},
        disarm=list(book.ends.timers.values()),
    )


def _letting_go(
    release: Release, entries: Sequence[NewEntry], book: _Book, fence: api.Fence, number: int, *, is_pausing: bool
) -> tuple[list[tuple[str, Any]], list[api.Timer], Ending]:
    """What is written when the lease is given back, the timers that go with it, and where the run goes."""
    last = entries[-1].type if entries else ""
    waits = [_wait(item, book) for item in release.on or ()]
    if last in ("run.waiting", "run.blocked"):
        if waits or release.until is not None:
            raise problem("bad_request", f"The events end with {last}; leave `until` and `on` out.", field="release")
        return [], [], "waiting" if last == "run.waiting" else "blocked"
    more: list[tuple[str, Any]] = []
    timers: list[api.Timer] = []
    if release.until is not None:
        timer = f"until:{fence.epoch}.{number}"
        due_ms = _time(release.until, "release.until")
        due_at = times.to_wire(due_ms)
        more.append(("timer.started", d.TimerStarted(timer=timer, due_at=due_at, why="Waits until then")))
        timers.append(api.Timer("timer", timer, due_ms))
        waits.append(WaitRef(timer, "timer"))
    if is_pausing:
        return [*more, ("run.paused", _paused(book))], timers, "paused"
    if not waits:
        return [], [], "hand_over"
    return [*more, ("run.waiting", d.RunWaiting(on=waits))], timers, "waiting"


def _paused(book: _Book) -> d.RunPaused:
    if book.pause is None:
        return d.RunPaused(code="user")
    payload = book.pause.data["payload"]
    return d.RunPaused(code="user", by=f"user:{book.pause.actor.id}", text=(payload or {}).get("reason"))


def _wait(item: WaitRef | str, book: _Book) -> WaitRef:
    if isinstance(item, WaitRef):
        return item
    if item in book.ends.requests:
        return WaitRef(item, cast("WaitKind", book.ends.requests[item]))
    if item in book.ends.timers:
        return WaitRef(item, "timer")
    return WaitRef(f"signal:{item}", "signal", item)
