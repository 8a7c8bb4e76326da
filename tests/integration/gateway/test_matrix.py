"""Role × call: what each role is answered at each address, by each command and by each frame.

The routes, commands and frames are taken from the gateway itself: one without a row fails here. A cell says no more
than the door does: let in, or turned away with 401, 403 or 404 (the same as for a run that is not there).
"""

import re
from collections.abc import Mapping
from typing import Any, Final

import httpx
import pytest
from starlette.routing import Route

from tests.support.gateway import AGENT, RunningGateway, token
from towline.protocol import approvals, requests
from towline.protocol import event_data as d
from towline.protocol.codec import NewEntry
from towline.protocol.commands import COMMANDS
from towline.protocol.frames import CLIENT_OPS
from towline.protocol.values import Proposal

pytestmark = pytest.mark.store

ROLES: Final = (
    "nobody", "foreign", "worker", "share", "viewer", "named", "collaborator", "owner", "operator", "auditor",
)  # fmt: skip
DOORS: Final = (401, 403, 404)

Policy = Mapping[str, int]
"""Role → the status it is turned away with; who is missing is let in."""

PUBLIC: Final[Policy] = {}
SIGNED_IN: Final[Policy] = {"nobody": 401}
STARTS: Final[Policy] = {"nobody": 401, "share": 403, "auditor": 403}
READS: Final[Policy] = {"nobody": 401, "foreign": 404, "worker": 404}
ABSENT: Final[Policy] = {**dict.fromkeys(ROLES, 404), "nobody": 401}
REQUESTS: Final[Policy] = {**READS, "share": 404, "viewer": 404}
OWNS: Final[Policy] = {
    **READS, "share": 403, "viewer": 403, "named": 403, "collaborator": 403, "auditor": 403,
}  # fmt: skip
STEERS: Final[Policy] = {**READS, "share": 403, "viewer": 403, "named": 403, "auditor": 403}
WORKS: Final[Policy] = {**dict.fromkeys(ROLES, 403), "nobody": 401, "worker": 0}
HOLDS: Final[Policy] = {**dict.fromkeys(ROLES, 403), "nobody": 401, "worker": 409}

ROWS: Final[Mapping[str, tuple[Policy, Any]]] = {
    "POST /v1/runs": (STARTS, {"workflow": "toy", "input": {}}),
    "GET /v1/runs": (SIGNED_IN, None),
    "GET /v1/runs/{run}": (READS, None),
    "DELETE /v1/runs/{run}": ({**OWNS, "owner": 403}, None),
    "POST /v1/runs/{run}/cancel": (OWNS, {"grace_ms": 600_000}),
    "GET /v1/runs/{run}/events": (READS, None),
    "POST /v1/runs/{run}/commands": (STEERS, {"type": "signal", "data": {"name": "nudge", "payload": {"by": 1}}}),
    "GET /v1/runs/{run}/commands/{command}": (ABSENT, None),
    "GET /v1/runs/{run}/requests/{request}": (REQUESTS, None),
    "GET /v1/runs/{run}/queries/{name}": (ABSENT, None),
    "GET /v1/runs/{run}/artifacts": (READS, None),
    "GET /v1/runs/{run}/artifacts/{artifact}": (ABSENT, None),
    "GET /v1/runs/{run}/payloads/{ref}": (ABSENT, None),
    "GET /v1/runs/{run}/grants": (OWNS, None),
    "PUT /v1/runs/{run}/grants/{subject:path}": (OWNS, {"role": "viewer"}),
    "DELETE /v1/runs/{run}/grants/{subject:path}": (OWNS, None),
    "POST /v1/runs/{run}/shares": (OWNS, {"expires_in_ms": 1000}),
    "GET /v1/runs/{run}/shares": (OWNS, None),
    "DELETE /v1/runs/{run}/shares/{share}": (OWNS, None),
    "GET /v1/runs/{run}/audit": (SIGNED_IN, None),
    "GET /v1/runs/{run}/export": (SIGNED_IN, None),
    "POST /v1/runs/{run}/fork": (SIGNED_IN, {}),
    "POST /v1/queues/{queue}/claims": (WORKS, {"worker": "w", "workflows": ["none"]}),
    "POST /v1/runs/{run}/claim": ({**WORKS, "worker": 404}, {}),
    "POST /v1/runs/{run}/lease": (HOLDS, {}),
    "DELETE /v1/runs/{run}/lease": (HOLDS, None),
    "GET /v1/runs/{run}/history": (HOLDS, None),
    "GET /v1/runs/{run}/inputs": (HOLDS, None),
    "POST /v1/runs/{run}/events": (HOLDS, {"events": [], "commit": 1, "seen": "0"}),
    "POST /v1/runs/{run}/deltas": (HOLDS, {"deltas": []}),
    "POST /v1/runs/{run}/payloads": (HOLDS, {}),
    "PUT /v1/runs/{run}/artifacts/{artifact}": (HOLDS, {}),
    "POST /v1/tickets": (SIGNED_IN, {"for": "socket"}),
    "POST /v1/uploads": (STARTS, {}),
    "GET /v1/inbox": (SIGNED_IN, None),
    "GET /v1/workflows": (SIGNED_IN, None),
    "GET /v1/whoami": (SIGNED_IN, None),
    **{f"{method} /v1/holds/{{scope}}": (SIGNED_IN, None) for method in ("GET", "PUT", "DELETE")},
    **{f"{method} /v1/schedules/{{schedule}}": (SIGNED_IN, None) for method in ("GET", "PUT", "DELETE")},
    "POST /v1/schedules/{schedule}/fire": (SIGNED_IN, None),
    **{f"{method} /v1/webhooks/{{webhook}}": (SIGNED_IN, None) for method in ("GET", "PUT", "DELETE")},
    "GET /v1/webhooks/{webhook}/deliveries": (SIGNED_IN, None),
    "POST /v1/webhooks/{webhook}/deliveries/{delivery}/redeliver": (SIGNED_IN, None),
    "GET /healthz": (PUBLIC, None),
    "GET /readyz": (PUBLIC, None),
    "GET /metrics": (PUBLIC, None),
    "GET /openapi.json": (PUBLIC, None),
    "GET /asyncapi.json": (PUBLIC, None),
    "GET /": (PUBLIC, None),
    "GET /{asset}": (PUBLIC, None),
    "GET /console/{asset}": (PUBLIC, None),
}
"""Each call with its policy and a body. What is not served yet answers whoever is signed in."""

COMMAND_ROWS: Final[Mapping[str, tuple[Policy, Any]]] = {
    "approve": ({**READS, "share": 403, "viewer": 403, "collaborator": 403, "operator": 403, "auditor": 403}, "q1"),
    "reject": ({**READS, "share": 403, "viewer": 403, "collaborator": 403, "operator": 403, "auditor": 403}, "q1"),
    "respond": ({**READS, "share": 403, "auditor": 403}, None),
    "pause": (STEERS, None),
    "resume": (STEERS, None),
    "revise": (STEERS, None),
    "add_context": (STEERS, None),
    "signal": (STEERS, None),
    "update": (STEERS, None),
    "cancel": (OWNS, None),
    "set_budget": (OWNS, None),
    "retry": ({**OWNS, "owner": 403}, None),
}
COMMAND_DATA: Final[Mapping[str, Any]] = {
    "respond": {"request": "q9", "value": 1},
    "revise": {"instruction": "less"},
    "add_context": {"text": "more"},
    "signal": {"name": "nudge", "payload": {"by": 1}},
    "update": {"name": "set", "payload": 1},
    "cancel": {"grace_ms": 600_000},
    "set_budget": {"caps": {"tokens": 5}},
}

FRAME_ROWS: Final[Mapping[str, Policy]] = {
    "hello": SIGNED_IN,
    "subscribe": READS,
    "unsubscribe": SIGNED_IN,
    "command": STEERS,
    "watch": SIGNED_IN,
    "auth": SIGNED_IN,
    "ping": SIGNED_IN,
}


class Cast:
    """One run and one caller of each role on it."""

    def __init__(self, gateway: RunningGateway, run: str, digest: str, share: str) -> None:
        self._gateway = gateway
        self.run = run
        self.digest = digest
        self.share = share

    def credential(self, role: str) -> str | None:
        """What a caller of this role presents."""
        match role:
            case "nobody":
                return None
            case "share":
                return self.share
            case "worker":
                return token("wim", roles=["worker"])
            case "operator":
                return token("root", roles=["operator"])
            case "auditor":
                return token("aud", roles=["operator"], verbs=["read"])
            case "owner":
                return token("ana")
            case _:
                return token(role)

    async def ask(self, role: str, call: str, body: Any) -> httpx.Response:
        """The answer to a call of the table."""
        method, path = call.split(" ")
        named = {"run": self.run, "subject": "user:zed", "request": "q1", "asset": "app.js", "queue": "default"}
        path = re.sub(r"\{(\w+)(:path)?\}", lambda part: named.get(part[1], "none"), path)
        credential = self.credential(role)
        client = self._gateway.http
        headers = {"Towline-Lease": "stale"} if ROWS[call][0] is HOLDS else {}
        request = client.build_request(method, path, json=body, headers=headers)
        del request.headers["Authorization"]
        if credential is not None:
            request.headers["Authorization"] = f"Bearer {credential}"
        return await client.send(request)


async def cast_on(gateway: RunningGateway) -> Cast:
    """A new run with its cast: an approval that `named` and the owner may decide is open."""
    grants = {"user:viewer": "viewer", "user:collaborator": "collaborator"}
    run = await gateway.start(grants=grants)
    hand = await gateway.hold(run)
    proposal = Proposal("Do it", [], ["fs:write"], "Little", "Undo it")
    digest = approvals.digest_of("q1", proposal, [])
    asked = d.ApprovalRequested(
        request="q1", title="May I?", proposal=proposal, digest=digest, questions=[],
        deciders=["user:named", "role:owner"], exclude=[], quorum=1,
    )  # fmt: skip
    await hand.write(NewEntry("approval.requested", AGENT, asked), side=requests.side_fields(requests.opened(asked)))
    shared = await gateway.http.post(f"/v1/runs/{run}/shares", json={"expires_in_ms": 3_600_000})
    assert shared.status_code == 201, shared.text
    return Cast(gateway, run, digest, shared.json()["token"])


def calls_of(gateway: RunningGateway) -> set[str]:
    routes = [route for route in gateway.server._app.routes if isinstance(route, Route)]
    return {f"{method} {route.path}" for route in routes for method in (route.methods or ()) if method != "HEAD"}


async def test_every_call_command_and_frame_has_its_row(gateway: RunningGateway) -> None:
    assert calls_of(gateway) == set(ROWS)
    assert set(COMMANDS) == set(COMMAND_ROWS)
    assert set(CLIENT_OPS) == set(FRAME_ROWS)


async def test_who_is_let_in(gateway: RunningGateway) -> None:
    wrong = []
    for call, (policy, body) in ROWS.items():
        cast = await cast_on(gateway)
        answers = {role: await cast.ask(role, call, body) for role in ROLES}
        is_later = answers["foreign"].status_code == 409 and "not served yet" in answers["foreign"].text
        for role, answer in answers.items():
            wanted = (SIGNED_IN if is_later else policy).get(role, 0)
            got = answer.status_code
            if got != wanted if wanted else got in DOORS or got >= 500:
                wrong.append((call, role, wanted or "let in", got, answer.text[:200]))
    assert wrong == []


async def test_a_foreign_run_is_answered_like_one_that_is_not_there(gateway: RunningGateway) -> None:
    cast = await cast_on(gateway)
    nowhere = Cast(gateway, "run_" + "0" * 26, "", "")
    for call, (policy, body) in ROWS.items():
        if "{run}" in call and policy.get("foreign") == 404:
            foreign, missing = [await c.ask("foreign", call, body) for c in (cast, nowhere)]
            bodies = [{k: v for k, v in a.json().items() if k != "request_id"} for a in (foreign, missing)]
            assert (foreign.status_code, bodies[0]) == (missing.status_code, bodies[1]), call
            headers = [sorted(name for name in a.headers if name != "date") for a in (foreign, missing)]
            assert headers[0] == headers[1], call


async def test_who_may_send_a_command(gateway: RunningGateway) -> None:
    wrong = []
    for type_, (policy, request) in COMMAND_ROWS.items():
        cast = await cast_on(gateway)
        data = COMMAND_DATA.get(type_, {}) if request is None else {"request": request, "digest": cast.digest}
        for role in ROLES:
            body = {"type": type_, "data": data, "command_id": f"c-{role}"}
            answer = await cast.ask(role, "POST /v1/runs/{run}/commands", body)
            wanted, got = policy.get(role, 0), answer.status_code
            is_let_in = (got < 500 and got not in DOORS) or (got == 404 and type_ == "respond")  # no such request
            if got != wanted if wanted else not is_let_in:
                wrong.append((type_, role, wanted or "let in", got, answer.text[:200]))
    assert wrong == []


async def test_who_may_send_a_frame(gateway: RunningGateway) -> None:
    for op, policy in FRAME_ROWS.items():
        await send_as_each(gateway, op, policy)


async def send_as_each(gateway: RunningGateway, op: str, policy: Policy) -> None:
    cast = await cast_on(gateway)
    for role in ROLES:
        credential = cast.credential(role)
        async with gateway.socket(hello=False) as wire:
            if credential is None:
                await wire.send(op=op, id="1", run=cast.run)
                assert await wire.closed() in (4500, 4501), role
                continue
            await wire.hello(credential)
            frame = {"op": op, "id": "1", "run": cast.run, "token": credential, "feed": "runs", "type": "signal"}
            await wire.send(**frame, command_id=f"c-{role}", data={"name": "nudge", "payload": {"by": 1}})
            if op == "hello":  # again
                assert (await wire.until("problem"))["problem"]["code"] == "conflict"
                continue
            answers = {"subscribe": "subscribed", "unsubscribe": "unsubscribed", "auth": "authenticated"}
            while (answer := await wire.next())["op"] == "heartbeat":
                pass
            why = answer.get("problem", {})
            assert why.get("status", 0) == policy.get(role, 0) or why.get("code") == "unsupported", (role, answer)
            if role not in policy and why.get("code") != "unsupported":
                assert answer["op"] in (answers.get(op, op), "receipt", "watching", "pong"), (role, answer)
