"""Grants, shares and tickets over HTTP: how somebody else comes to read a run, and how a browser shows a credential.

Promises that only owners and operators give access, that the token of a share and the text of a ticket are told once,
to who made them, and that all of them can be asked for again and again with the same outcome. Leaves what they open
to `access`, what is kept to `store.granting` and `credentials`.
"""

from typing import Annotated, Final

from msgspec import Meta, Struct
from starlette.responses import Response

from towline.gateway import access
from towline.gateway.credentials import Name, Ticket, TicketKind
from towline.gateway.http import Call, json_answer, route
from towline.gateway.mounting import base_of
from towline.protocol import grants, times
from towline.protocol.errors import problem
from towline.protocol.projection import Caller
from towline.protocol.store import granting

SHARE_MAX_MS: Final = 366 * 24 * 3_600_000


class GrantBody(Struct, frozen=True):
    """The body of `PUT …/grants/{subject}`."""

    role: str


class ShareBody(Struct, frozen=True):
    """The body of `POST …/shares`. `deltas`: whether the link also shows unfinished text."""

    expires_in_ms: Annotated[int, Meta(ge=1, le=SHARE_MAX_MS)]
    deltas: bool = False


class TicketBody(Struct, frozen=True, rename={"kind": "for"}):
    """The body of `POST /tickets`."""

    kind: TicketKind
    run: Name | None = None
    artifact: Name | None = None


async def _owner(call: Call) -> Caller:
    """The caller, if they may give and take access to the run. Raises `not_found`, `forbidden`."""
    caller, _ = await call.services.reach(call.credential, call.path("run"))
    access.require(call.credential, "admin")
    access.require_role(caller, "owner")
    return caller


async def list_grants(call: Call) -> Response:
    """`GET /v1/runs/{run}/grants`."""
    await _owner(call)
    found = await granting.grants_of(call.services.store, call.path("run"))
    items = [{"subject": entry, "role": role} for entry, role in sorted(found.items())]
    return json_answer({"items": items, "next_page": None})


async def put_grant(call: Call) -> Response:
    """`PUT /v1/runs/{run}/grants/{subject}`."""
    caller = await _owner(call)
    entry = grants.check_entry(call.path("subject"), field="subject")
    role = grants.check_role((await call.body(GrantBody)).role, field="role")
    await granting.set_grant(call.services.store, call.path("run"), entry, role, by=caller.subject)
    return json_answer({"subject": entry, "role": role})


async def delete_grant(call: Call) -> Response:
    """`DELETE /v1/runs/{run}/grants/{subject}`: also when there is none."""
    caller = await _owner(call)
    entry = grants.check_entry(call.path("subject"), field="subject")
    await granting.set_grant(call.services.store, call.path("run"), entry, None, by=caller.subject)
    return Response(status_code=204)


async def create_share(call: Call) -> Response:
    """`POST /v1/runs/{run}/shares`."""
    caller = await _owner(call)
    body = await call.body(ShareBody)
    share, token = await granting.create_share(
        call.services.store,
        call.path("run"),
        expires_in_ms=body.expires_in_ms,
        deltas=body.deltas,
        by=caller.subject,
    )
    text = token.to_text()
    base = base_of(call.request, call.services.settings.public_url)
    told = {**_told(share), "token": text, "url": f"{base}/#token={text}&run={token.run}"}
    return json_answer(told, 201)


def _told(share: grants.Share) -> dict[str, object]:
    return {
        "share": share.share,
        "role": "viewer",
        "deltas": share.deltas,
        "created_at": times.to_wire(share.created_at_ms),
        "expires_at": times.to_wire(share.expires_at_ms),
        "by": share.by,
    }


async def list_shares(call: Call) -> Response:
    """`GET /v1/runs/{run}/shares`: without their tokens, which nobody knows any more."""
    await _owner(call)
    shares = await granting.shares_of(call.services.store, call.path("run"))
    return json_answer({"items": [_told(share) for share in shares], "next_page": None})


async def delete_share(call: Call) -> Response:
    """`DELETE /v1/runs/{run}/shares/{share}`: also when there is none."""
    await _owner(call)
    await granting.revoke_share(call.services.store, call.path("run"), call.path("share"))
    return Response(status_code=204)


async def create_ticket(call: Call) -> Response:
    """`POST /v1/tickets`."""
    body = await call.body(TicketBody)
    needed = {"socket": (), "events": ("run",), "artifact": ("run", "artifact")}[body.kind]
    for field, value in (("run", body.run), ("artifact", body.artifact)):
        if (value is not None) != (field in needed):
            what = "needs" if field in needed else "takes no"
            raise problem("bad_request", f"A ticket for {body.kind} {what} {field}.", field=field)
    if body.run is not None:
        await call.services.reach(call.credential, body.run)
    ticket = Ticket(
        kind=body.kind,
        credential=call.credential,
        origin=call.request.headers.get("origin"),
        run=body.run,
        artifact=body.artifact,
    )
    text, ends_ms = await call.services.credentials.issue(ticket)
    return json_answer({"ticket": text, "expires_at": times.to_wire(ends_ms)}, 201)


ROUTES: Final = (
    route("/v1/runs/{run}/grants", list_grants),
    route("/v1/runs/{run}/grants/{subject:path}", put_grant, "PUT"),
    route("/v1/runs/{run}/grants/{subject:path}", delete_grant, "DELETE"),
    route("/v1/runs/{run}/shares", create_share, "POST"),
    route("/v1/runs/{run}/shares", list_shares),
    route("/v1/runs/{run}/shares/{share}", delete_share, "DELETE"),
    route("/v1/tickets", create_ticket, "POST"),
)
