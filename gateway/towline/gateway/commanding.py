"""Commands over HTTP, and what the socket shares with it: acceptance for a credential, and the wait for an outcome.

Promises a receipt for every command that was accepted, after it is durable, and with `wait` its outcome or
`timed_out`. Rights and state are judged by `store.acceptance`; here stands only which credential may try.
"""

import asyncio
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace
from starlette.responses import Response

from towline.gateway import access
from towline.gateway.http import Call, json_answer, route
from towline.gateway.services import Services
from towline.protocol import commands, requests
from towline.protocol.codec import Entry
from towline.protocol.commands import Receipt
from towline.protocol.errors import ProblemError, problem
from towline.protocol.events import EVENTS
from towline.protocol.ids import is_command_id, random_id
from towline.protocol.limits import WAIT_MAX_MS
from towline.protocol.projection import may_read
from towline.protocol.store.acceptance import receipt_of, send_command
from towline.protocol.store.deciding import request_state
from towline.protocol.tokens import Credential
from towline.protocol.validation import to_time_ms


class CommandBody(Struct, frozen=True):
    """The body of `POST …/commands`; `data` is judged by the command's own type."""

    type: str
    data: Any = None
    command_id: str | None = None
    wait: Literal["applied"] | None = None
    timeout_ms: Annotated[int, Meta(ge=0, le=WAIT_MAX_MS)] | None = None
    not_after: str | None = None


async def accept(
    services: Services,
    credential: Credential,
    run: str,
    *,
    type_: str,
    data: Any,
    command_id: str,
    not_after: str | None,
) -> Receipt:
    """Accepts a command as it was sent; its receipt. Raises `ProblemError` for a refusal, and what the store raises."""
    caller, facts = await services.reach(credential, run, verb=None)
    try:
        access.require(credential, "command")
        command = commands.decode(type_, data, command_id)
        not_after_ms = None if not_after is None else to_time_ms(not_after, "not_after")
    except ProblemError:
        if facts.sealed and type_ != "cancel":
            # Said before any other refusal: nothing that is put right would help.
            raise problem("run_closed", "The run has ended; nothing more reaches it.") from None
        raise
    return await send_command(
        services.store,
        run,
        command,
        caller,
        signals=await services.signals_of(facts.workflow, facts.version),
        not_after_ms=not_after_ms,
    )


async def outcome(services: Services, run: str, subject: str, receipt: Receipt, *, timeout_ms: int | None) -> Receipt:
    """The receipt once the command was applied or rejected, or as it stands with `timed_out`."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + (WAIT_MAX_MS if timeout_ms is None else timeout_ms) / 1000
    async with services.watching(run) as watcher:
        while True:
            facts = await services.store.facts(run)
            present = replace(
                await receipt_of(services.store, run, subject, receipt.command_id), duplicate=receipt.duplicate
            )
            if present.status != "accepted":
                return present
            if facts.sealed:
                # A cancel has no outcome of its own: the end of the run is it.
                ended = (await services.store.load(run)).run.status
                return replace(present, status="applied", effect=f"The run is {ended}.")
            if services.draining.is_set() or not await watcher.wait(until_s - loop.time()):
                return replace(present, applies=receipt.applies, timed_out=True)


async def send(call: Call) -> Response:
    """`POST /v1/runs/{run}/commands`."""
    run, key = call.path("run"), call.idempotency_key()
    await call.services.reach(call.credential, run, verb=None)
    body = await call.body(CommandBody)
    await call.services.admission.command(call.who, body.type)
    if key is not None and body.command_id not in (None, key):
        raise problem("bad_request", "The Idempotency-Key is another than the command_id.", field="command_id")
    named = key if body.command_id is None else body.command_id
    receipt = await accept(
        call.services,
        call.credential,
        run,
        type_=body.type,
        data=body.data,
        command_id=random_id("cmd") if named is None else named,
        not_after=body.not_after,
    )
    if body.wait is not None and receipt.status == "accepted":
        receipt = await outcome(call.services, run, call.credential.subject, receipt, timeout_ms=body.timeout_ms)
    headers = {"Idempotency-Replayed": "true"} if receipt.duplicate is True else {}
    return json_answer(receipt, 202 if receipt.status == "accepted" else 200, headers)


async def look_up(call: Call) -> Response:
    """`GET /v1/runs/{run}/commands/{command}`."""
    run, command_id = call.path("run"), call.path("command")
    await call.services.reach(call.credential, run)
    if not is_command_id(command_id):
        raise problem("bad_request", "No command has such an id.", field="command_id", expected="a command id")
    receipt = await receipt_of(call.services.store, run, call.credential.subject, command_id)
    return json_answer(receipt)


async def request(call: Call) -> Response:
    """`GET /v1/runs/{run}/requests/{request}`: open or resolved."""
    run, name = call.path("run"), call.path("request")
    caller, _ = await call.services.reach(call.credential, run)
    state, _ = await request_state(call.services.store, run, name)
    opened = await _opening(call, run, name)
    audience = EVENTS["approval.requested"].audience if opened is None else opened.meta.audience
    if not may_read(caller.role, audience) and not requests.is_named(state, caller):
        raise problem("not_found", "The run has no such request, or you may not read it.")
    since = None if opened is None else opened.event().ts
    return json_answer(requests.to_wire(state, caller, seq=None if opened is None else opened.seq, since=since))


async def _opening(call: Call, run: str, name: str) -> Entry | None:
    """The entry that opened a request."""
    for entry in await call.services.find_entries(run, frozenset({"approval.requested", "input.requested"})):
        if entry.event().data["request"] == name:
            return entry
    return None


ROUTES: Final = (
    route("/v1/runs/{run}/commands", send, "POST"),
    route("/v1/runs/{run}/commands/{command}", look_up),
    route("/v1/runs/{run}/requests/{request}", request),
)
