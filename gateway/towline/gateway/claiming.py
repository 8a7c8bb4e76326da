"""Taking runs over HTTP: the next run of a queue, or a run of one's own that no queue hands out.

Promises at most one lease an answer, that a run which its caller cannot take reaches another, and that a caller who
went away while waiting takes none. A claim writes down what it is: `run.started`, `run.taken_over` or `run.resumed`.
Leaves what happens under the lease to `leases` and `writing`.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct
from starlette.responses import Response

from towline.gateway import access
from towline.gateway.http import Call, json_answer, route
from towline.gateway.leases import hand_over, raw_events, require_worker, seal
from towline.protocol import event_data as d
from towline.protocol.codec import NewEntry, type_of
from towline.protocol.cursor import Cursor
from towline.protocol.errors import problem
from towline.protocol.events import Actor
from towline.protocol.ids import is_command_id, is_name
from towline.protocol.limits import LEASE_MS, WAIT_MAX_MS
from towline.protocol.projection import Caller
from towline.protocol.store import api
from towline.protocol.store.channel import open_commands
from towline.protocol.store.parking import park, poison
from towline.protocol.store.spilling import unspill
from towline.protocol.values import JsonObject, OnBusy

_BLOCK_MS: Final = 1_000
WorkerName = Annotated[str, Meta(min_length=1, max_length=128)]
Wait = Annotated[int, Meta(ge=0, le=WAIT_MAX_MS)]


class Offer(Struct, frozen=True):
    """A workflow that a worker runs, in one version. Its schemas are what `GET /workflows` tells."""

    name: str
    version: Annotated[str, Meta(min_length=1, max_length=64)] = "1"
    input_schema: JsonObject = {}
    signals: dict[str, JsonObject] = {}
    updates: list[str] = []
    queries: list[str] = []
    accepts: list[str] = []
    on_busy: OnBusy | None = None


class ClaimsBody(Struct, frozen=True):
    """The body of `POST /queues/{queue}/claims`. A workflow that is only named is taken in every version."""

    worker: WorkerName
    workflows: Annotated[list[str | Offer], Meta(min_length=1, max_length=100)]
    wait_ms: Wait = 0


class ClaimBody(Struct, frozen=True):
    """The body of `POST …/claim`."""

    worker: WorkerName | None = None
    wait_ms: Wait = 0


class _Offers(Struct, frozen=True):
    """What a worker takes: workflows in every version, and those of one."""

    names: frozenset[str]
    versions: frozenset[tuple[str, str]]

    @classmethod
    def of(cls, workflows: Sequence[str | Offer]) -> "_Offers":
        return cls(
            frozenset(offer for offer in workflows if isinstance(offer, str)),
            frozenset((offer.name, offer.version) for offer in workflows if isinstance(offer, Offer)),
        )

    def take(self, workflow: str, version: str) -> bool:
        return workflow in self.names or (workflow, version) in self.versions


async def next_run(call: Call) -> Response:
    """`POST /v1/queues/{queue}/claims`."""
    require_worker(call)
    access.require(call.credential, "command")
    queue = call.path("queue")
    body = await call.body(ClaimsBody)
    if not is_name(queue):
        raise problem("bad_request", "A queue is named like an identifier.", field="queue")
    _check_worker(body.worker)
    call.services.admission.claim()
    for position, offer in enumerate(body.workflows):
        if not is_name(offer if isinstance(offer, str) else offer.name):
            raise problem("bad_request", "A workflow is named like an identifier.", field=f"workflows[{position}]")
    await call.services.store.announce(body.worker, await _announcements(call, queue, body.workflows))
    offers = _Offers.of(body.workflows)
    loop = asyncio.get_running_loop()
    until_s = loop.time() + body.wait_ms / 1000
    async with _presence(call) as gone:
        while not gone.done():
            left_ms = max(0, int((until_s - loop.time()) * 1000))
            hint = await _next_hint(call, queue, left_ms)
            if hint is not None:
                is_mine = offers.take(hint.workflow, hint.version) and access.covers(call.credential, hint.run)
                if gone.done() or not is_mine:
                    await call.services.store.return_hint(queue, hint)
                elif (claimed := await _claim_hinted(call, queue, hint, body.worker, offers)) is not None:
                    if gone.done():
                        await hand_over(call, hint.run, claimed.fence)
                    elif (answer := await _begun(call, claimed, body.worker)) is not None:
                        return json_answer(answer)
            if left_ms == 0 and (hint is None or loop.time() > until_s + 1):
                break
            if call.services.draining.is_set():
                break
    return Response(status_code=204)


def _check_worker(name: str) -> None:
    if not is_command_id(name):
        raise problem("bad_request", "A worker is named with 1 to 128 of [A-Za-z0-9._:-].", field="worker")


async def _announcements(call: Call, queue: str, offers: Sequence[str | Offer]) -> list[api.WorkflowInfo]:
    """What to say of the workflows: of one that is only named, what others said of it, or that it takes anything."""
    known = await call.services.announced(fresh=True)
    infos: dict[tuple[str, str], api.WorkflowInfo] = {}
    for offer in offers:
        if isinstance(offer, Offer):
            told = msgspec.structs.asdict(offer)
            infos[offer.name, offer.version] = api.WorkflowInfo(queue=queue, **told)
            continue
        others = [a.workflow for a in known if (a.workflow.name, a.workflow.queue) == (offer, queue)]
        for info in others or [api.WorkflowInfo(name=offer, version="1", queue=queue, input_schema={})]:
            infos.setdefault((info.name, info.version), info)
    return list(infos.values())


@asynccontextmanager
async def _presence(call: Call) -> "AsyncIterator[asyncio.Future[Any]]":
    """A future that is done once the caller has gone away."""

    async def watch() -> None:
        while (await call.request.receive())["type"] != "http.disconnect":
            pass

    task = asyncio.create_task(watch())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _next_hint(call: Call, queue: str, left_ms: int) -> api.Hint | None:
    """One hint, waited for in turn: one read of the store serves all who wait here for the same queue."""
    turn = call.services.queue_turns[queue]
    try:
        async with asyncio.timeout(left_ms / 1000 + 0.5):
            await turn.acquire()
    except TimeoutError:
        return None
    try:
        hints = await call.services.store.read_hints(queue, count=1, block_ms=min(_BLOCK_MS, max(1, left_ms)))
    finally:
        turn.release()
    if hints and not turn.locked():
        await call.services.store.give_back_hints(queue)  # nobody waits here for what else came
    return hints[0] if hints else None


async def _claim_hinted(call: Call, queue: str, hint: api.Hint, worker: str, offers: _Offers) -> api.Claimed | None:
    """The lease of the run that `hint` points to; None if it cannot be had."""
    claimed = await _claim(call, hint.run, hint.version, worker)
    if isinstance(claimed, api.NotClaimed) and claimed.why == "version" and claimed.version:
        if not offers.take(hint.workflow, claimed.version):
            pinned = api.Hint(hint.run, hint.workflow, claimed.version, hint.returned)
            await call.services.store.return_hint(queue, pinned)
            return None
        claimed = await _claim(call, hint.run, claimed.version, worker)
    return claimed if isinstance(claimed, api.Claimed) else None


async def _claim(call: Call, run: str, version: str, worker: str) -> api.Claimed | api.NotClaimed:
    return await call.services.store.claim(
        run, nonce=secrets.token_hex(8), holder=worker, version=version, ttl_ms=LEASE_MS
    )


async def _begun(call: Call, claimed: api.Claimed, worker: str) -> dict[str, Any] | None:
    """Writes down that `worker` holds the run now; what it is told. None for a run that was parked instead."""
    store, run = call.services.store, claimed.run
    loaded = await store.load(run)
    if claimed.is_poison:
        found = poison(claimed.lapsed, claimed.crashes, worker, store.now_ms())
        await park(store, claimed, loaded.facts.queue, found, seen=claimed.cursor)
        return None
    actor = Actor("worker", worker)
    entries: list[NewEntry] = []
    if loaded.run.status == "queued":
        entries.append(NewEntry("run.started", actor, d.RunStarted(worker=worker)))
    elif claimed.lapsed:
        entries.append(NewEntry("run.taken_over", actor, d.RunTakenOver(worker=worker, from_=claimed.lapsed)))
    if loaded.run.status == "waiting":
        entries.append(NewEntry("run.resumed", actor, d.RunResumed(from_="waiting")))
    if entries:
        commit = api.Commit(
            run=run,
            queue=loaded.facts.queue,
            fence=claimed.fence,
            number=1,
            seen=claimed.cursor,
            now_ms=store.now_ms(),
            entries=entries,
        )
        await store.commit(commit)
        loaded = await store.load(run)
    caller = Caller(call.credential.subject, "worker", call.credential.groups, decides=False)
    # Of a trimmed log the first entry is the one with which the run began anew.
    first = await store.read_log(run, Cursor(loaded.facts.first_seq - 1), limit=1, private=True)
    private = (await unspill(first.entries[0], call.services.payloads.of(run))).private if first.entries else None
    waiting = set(await open_commands(store, run))
    commands = [
        entry
        for entry in await call.services.find_entries(run, frozenset({"command.received", "cancel.requested"}))
        if entry.seq in waiting or type_of(entry.raw) == "cancel.requested"
    ]
    return {
        "run": await call.services.project(loaded, caller),
        "input": None if private is None else msgspec.json.decode(private).get("input"),
        "lease": seal(call, claimed, before=1 if entries else 0),
        "head": loaded.run.last_seq,
        "commands": raw_events(commands),
    }


async def claim_own(call: Call) -> Response:
    """`POST /v1/runs/{run}/claim`: a run without a queue, by who started it, once its lease has ended."""
    require_worker(call)
    access.require(call.credential, "command")
    run = call.path("run")
    _, facts = await call.services.reach(call.credential, run)
    body = await call.body(ClaimBody, optional=True)
    worker = body.worker or _name_of(call)
    _check_worker(worker)
    call.services.admission.claim()
    if facts.owner != call.credential.subject:
        raise problem("forbidden", "Only who started this run may claim it.", needs="owner")
    if facts.queue:
        raise problem("conflict", "Workers take this run from its queue.", field="run")
    loop = asyncio.get_running_loop()
    until_s = loop.time() + body.wait_ms / 1000
    async with _presence(call) as gone, call.services.watching(run) as watcher:
        while True:
            claimed = await _claim(call, run, facts.version, worker)
            if isinstance(claimed, api.Claimed):
                if gone.done():
                    await hand_over(call, run, claimed.fence)
                    return Response(status_code=204)
                if (answer := await _begun(call, claimed, worker)) is not None:
                    return json_answer(answer)
                raise problem("conflict", "The run is parked: its workers died one after the other.", field="run")
            left_s = until_s - loop.time()
            if left_s <= 0 or gone.done() or claimed.why == "closed" or call.services.draining.is_set():
                break
            pause_s = left_s if claimed.why == "parked" else min(left_s, claimed.retry_ms / 1000 + 0.01)
            await watcher.wait(pause_s)
    match claimed.why:
        case "closed":
            raise problem("run_closed", "The run has ended; nothing more reaches it.")
        case "held":
            raise problem("conflict", "Its lease has not ended yet.", field="run", retry_after_ms=claimed.retry_ms)
        case _:
            return Response(status_code=204)  # it waits for an answer, a signal or a time


def _name_of(call: Call) -> str:
    subject = call.credential.subject
    return subject if is_command_id(subject) else "worker"


async def take_started(call: Call, run: str, version: str) -> dict[str, Any] | None:
    """`{run, lease}` for a run without a queue that was just started, or None if it is held or gone."""
    claimed = await _claim(call, run, version, _name_of(call))
    if isinstance(claimed, api.NotClaimed):
        return None
    answer = await _begun(call, claimed, _name_of(call))
    return None if answer is None else {"run": answer["run"], "lease": answer["lease"]}


ROUTES: Final = (
    route("/v1/queues/{queue}/claims", next_run, "POST"),
    route("/v1/runs/{run}/claim", claim_own, "POST"),
)
