"""Leases over HTTP: proof of holding a run, renewing it, giving it back, and what a holder reads.

Promises that a call without a token that is still the run's answers `fenced` and does nothing, the same for a run
that is not there. Once a run has ended its last holder is told `run_closed`. Leaves taking a lease to `claiming`,
writing under it to `writing`.
"""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct
from starlette.responses import Response

from towline.gateway import access
from towline.gateway.http import Call, json_answer, route
from towline.protocol import leases, times
from towline.protocol.codec import Entry
from towline.protocol.cursor import LATEST, START, Cursor
from towline.protocol.errors import ProblemError, problem
from towline.protocol.limits import CHANGED_ATTEMPTS, LEASE_MS, PAGE_BYTES, STORE_PAGE_EVENTS, WAIT_MAX_MS
from towline.protocol.projection import Role
from towline.protocol.store import api
from towline.protocol.store.holders import LeaseFacts
from towline.protocol.store.payloads import RunPayloads
from towline.protocol.store.spilling import unspill

HEADER: Final = "Towline-Lease"


class RenewBody(Struct, frozen=True):
    """The body of `POST …/lease`. `step`: what the worker works on, for people."""

    step: Annotated[str, Meta(max_length=200)] | None = None


class Held(Struct, frozen=True):
    """A lease that is the run's now. `before`: commits that were made under it before the worker's first."""

    run: str
    fence: api.Fence
    before: int
    number: int
    """The newest commit of this lease, counted as the worker counts."""


def fenced() -> ProblemError:
    """The one answer to a token that is no longer the run's, or never was."""
    return problem("fenced", "This lease is not the run's (any more). Stop, and write nothing more.")


def require_worker(call: Call) -> None:
    """Raises `forbidden` unless the credential may work."""
    if "worker" not in call.credential.roles:
        raise problem("forbidden", "Only a credential with the role worker may do this.", needs="worker")


def seal(call: Call, claimed: api.Claimed, before: int) -> dict[str, Any]:
    """`lease` as a worker is told it."""
    token = leases.LeaseToken(claimed.fence.epoch, claimed.fence.nonce, before)
    text = leases.seal(call.services.store.secret, claimed.run, call.credential.subject, token)
    return {"token": text, "ttl_ms": LEASE_MS}


async def held(call: Call, *, ended_too: bool = False) -> Held:
    """The lease that the call shows. Raises `fenced`, and `run_closed` for the last holder of a run that ended.

    `ended_too`: also a lease that its holder gave back by release or by ending the run, for calls that repeat.
    """
    require_worker(call)
    run, text = call.path("run"), call.request.headers.get(HEADER)
    if text is None:
        raise problem("bad_request", f"Send the lease's token as {HEADER}.", field=HEADER, expected="a lease token")
    store = call.services.store
    token = leases.unseal(store.secret, run, call.credential.subject, text)
    if token is None or not access.covers(call.credential, run):
        raise fenced()
    facts = await store.lease_facts(run)
    fence = api.Fence(token.epoch, token.nonce)
    if facts is None:
        raise fenced()
    if facts.fence != fence:
        raise await _too_late(call, run, fence, facts)
    if not ended_too and facts.is_given_back:
        raise run_closed() if facts.sealed else fenced()
    return Held(run, fence, token.before, max(0, facts.number - token.before))


async def role_of(call: Call) -> Role:
    """The caller's role on the run: that of a lease holder by the lease it shows, else by its credential."""
    if HEADER in call.request.headers:
        await held(call)
        return "worker"
    caller, _ = await call.services.reach(call.credential, call.path("run"))
    return caller.role


def run_closed() -> ProblemError:
    """The answer to the last holder of a run that ended."""
    return problem("run_closed", "The run has ended; nothing more reaches it.")


async def _too_late(call: Call, run: str, fence: api.Fence, facts: LeaseFacts) -> ProblemError:
    """Why another fence is the run's now: a cancel's deadline closed the run, or somebody else holds or held it."""
    if facts.sealed and fence.epoch == facts.fence.epoch - 1:
        ended = await call.services.find_entries(run, frozenset({"run.cancelled"}))
        if ended and ended[-1].event().data.get("forced"):
            return run_closed()
    return fenced()


async def renew(call: Call) -> Response:
    """`POST /v1/runs/{run}/lease`."""
    lease = await held(call)
    body = await call.body(RenewBody, optional=True)
    store = call.services.store
    renewal = (await store.renew([api.Lease(lease.run, lease.fence, body.step or "")], ttl_ms=LEASE_MS))[0]
    if renewal.lost is not None:
        raise run_closed() if renewal.lost == "closed" else fenced()
    loaded = await store.load(lease.run)
    return json_answer(
        {
            "expires_at": times.to_wire(store.now_ms() + LEASE_MS),
            "head": loaded.run.last_seq,
            "stopping": loaded.run.stopping,
            "pausing": loaded.run.pausing,
        }
    )


async def give_back(call: Call) -> Response:
    """`DELETE /v1/runs/{run}/lease`: another worker may have the run at once."""
    lease = await held(call, ended_too=True)
    await hand_over(call, lease.run, lease.fence)
    return Response(status_code=204)


async def hand_over(call: Call, run: str, fence: api.Fence) -> None:
    """Gives a lease back, if it is not already. Raises `fenced`."""
    store = call.services.store
    for _ in range(CHANGED_ATTEMPTS):
        at = await store.lease_facts(run)
        if at is None or at.fence != fence:
            raise fenced()
        if at.is_given_back:
            return
        facts = await store.facts(run)
        commit = api.Commit(
            run=run, queue=facts.queue, fence=fence, number=at.number + 1, seen=facts.head, now_ms=store.now_ms()
        )
        try:
            await store.release(commit, "hand_over")
        except api.Diverged:
            continue  # a commit of the worker came in between
        except api.RunClosed:
            return
        except api.Fenced:
            raise fenced() from None
        return
    raise problem("overloaded", "The run changes too fast to give it back now; try again.", retry_after_ms=200)


async def history(call: Call) -> Response:
    """`GET /v1/runs/{run}/history`: events as they are, each with the private part that its writer stored."""
    lease = await held(call)
    page, after = await _page(call, lease.run, call.query_int("limit", STORE_PAGE_EVENTS, 1, STORE_PAGE_EVENTS))
    shown: list[msgspec.Raw] = []
    size_bytes = 0
    for entry in page.entries:
        raw = await _with_private(entry, call.services.payloads.of(lease.run))
        size_bytes += len(raw)
        if shown and size_bytes > PAGE_BYTES:
            break
        shown.append(msgspec.Raw(raw))
        after = entry.cursor
    return json_answer({"events": shown, "cursor": str(after), "head": page.head.seq, "first_seq": page.first_seq})


async def inputs(call: Call) -> Response:
    """`GET /v1/runs/{run}/inputs`: commands and decisions since a cursor; its answer's cursor is what was `seen`."""
    lease = await held(call)
    wait_ms = call.query_int("wait_ms", 0, 0, WAIT_MAX_MS)
    loop = asyncio.get_running_loop()
    until_s = loop.time() + wait_ms / 1000
    async with call.services.watching(lease.run) as watcher:
        page, after = await _page(call, lease.run, STORE_PAGE_EVENTS)
        while True:
            found = [entry for entry in page.entries if entry.meta.is_input]
            after = page.entries[-1].cursor if page.entries else after
            is_over = found or page.sealed or call.services.draining.is_set()
            if is_over or (len(page.entries) < STORE_PAGE_EVENTS and not await watcher.wait(until_s - loop.time())):
                break
            page = await call.services.store.read_log(lease.run, after, limit=STORE_PAGE_EVENTS)
        await held(call)  # who lost the lease while waiting must not act on what came
    events = [msgspec.Raw(entry.raw) for entry in found]
    return json_answer({"events": events, "cursor": str(after), "head": page.head.seq})


async def _page(call: Call, run: str, limit: int) -> tuple[api.LogPage, Cursor]:
    """Entries behind the cursor in the query, and that cursor. Raises `conflict` for one of another history."""
    after = call.query_cursor()
    if after == LATEST:
        after = (await call.services.store.facts(run)).head
    assert not isinstance(after, str)
    after = START if after is None else after
    page = await call.services.store.read_log(run, after, limit=limit, private=True)
    if page.recovery == "trimmed":
        start = Cursor(page.first_seq - 1)
        page = await call.services.store.read_log(run, start, limit=limit, private=True)
    if page.recovery != "ok":
        raise problem("conflict", "The log has no such position; read it from its beginning.", field="after")
    return page, after


async def _with_private(entry: Entry, payloads: RunPayloads) -> bytes:
    private = (await unspill(entry, payloads)).private
    return entry.raw if private is None else entry.raw[:-1] + b',"private":' + private + b"}"


def raw_events(entries: Sequence[Entry]) -> list[msgspec.Raw]:
    """Entries as a lease holder reads them: whole."""
    return [msgspec.Raw(entry.raw) for entry in entries]


ROUTES: Final = (
    route("/v1/runs/{run}/lease", renew, "POST"),
    route("/v1/runs/{run}/lease", give_back, "DELETE"),
    route("/v1/runs/{run}/history", history),
    route("/v1/runs/{run}/inputs", inputs),
)
