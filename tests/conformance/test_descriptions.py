"""What the gateway says of itself is what it does: every route, every answer, every frame."""

import asyncio
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final, cast

import httpx
import hypothesis
import jsonschema
import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.routing import Route

from tests.support.gateway import RunningGateway, token
from tests.support.http_worker import PROPOSAL, data_of, http_worker, offer_essay, start_essay
from tests.support.soak import SOAK
from towline.gateway import about
from towline.gateway.describing.asyncapi import asyncapi
from towline.gateway.describing.calls import CALLS
from towline.gateway.describing.openapi import openapi
from towline.protocol.frames import CLIENT_OPS
from towline.protocol.tokens import GlobalRole

EXAMPLES: Final = 60 if SOAK else 8
CHECKS: Final = (
    not_a_server_error, status_code_conformance, content_type_conformance,
    response_schema_conformance, response_headers_conformance,
)  # fmt: skip
LATER: Final = {(method, path) for path, *methods in about._LATER for method in methods}


def served(gateway: RunningGateway) -> set[tuple[str, str]]:
    """Every route of the app by its method and path, in the words of the description."""
    found = set[tuple[str, str]]()
    for route in gateway.server._app.routes:
        if isinstance(route, Route):
            path = route.path.replace(":path}", "}")
            found |= {(method, path) for method in route.methods or () if method != "HEAD"}
    return found


async def test_every_route_is_described_and_everything_described_is_served(gateway: RunningGateway) -> None:
    assert served(gateway) - LATER == set(CALLS)
    document = (await gateway.http.get("/openapi.json")).json()
    described = {(method.upper(), path) for path, item in document["paths"].items() for method in item}
    assert described == set(CALLS)
    ids = [call["operationId"] for item in document["paths"].values() for call in item.values()]
    assert len(set(ids)) == len(ids)


async def test_they_are_served_to_anyone_and_known_by_their_tag(gateway: RunningGateway) -> None:
    async with httpx.AsyncClient(base_url=gateway.url) as stranger:
        for name, version in (("openapi", "3.1.0"), ("asyncapi", "3.0.0")):
            answer = await stranger.get(f"/{name}.json")
            assert answer.json()[name] == version
            again = await stranger.get(f"/{name}.json", headers={"If-None-Match": answer.headers["etag"]})
            assert (again.status_code, again.content) == (304, b"")


async def furnished(gateway: RunningGateway) -> dict[str, str]:
    """A run with something of everything, held by a worker; the names that stand in paths."""
    await offer_essay(gateway)
    run = await start_essay(gateway, labels={"a": "b"}, budget={"tokens": 5})
    async with http_worker(gateway, subject="ana") as worker:
        await worker.claim()
        await worker.call("PUT", "artifacts/essay", content=b"# Ropes")
        asked = data_of("approval.requested", request="q", title="?", proposal=PROPOSAL)
        step = {"step": "s", "attempt": 1}
        await worker.write(
            data_of("plan.proposed", items=[{"id": "1", "title": "Write"}]),
            data_of("tool.started", **step, name="call", title="Call", effect="write"),
            data_of("tool.finished", **step, summary="Called", duration_ms=1, usage={"tokens": 3}),
            data_of("checkpoint.saved", title="Half", done=["s"], next=["t"]),
            asked,
        )
        command = {"type": "reject", "command_id": "k1", "data": {"request": "q", "digest": "sha256:0"}}
        await gateway.http.post(f"/v1/runs/{run}/commands", json=command)
        named = {"command": "k1", "request": "q", "artifact": "essay", "subject": "user:bob", "queue": "default"}
        return {**named, "run": run, "lease": worker.lease["token"]}


def speak(url: str, names: dict[str, str], methods: tuple[str, ...]) -> int:
    """Sends what the description allows, and much that it does not, to every call; how many it sent."""
    schema = schemathesis.openapi.from_dict(openapi())
    sent = 0

    def once(operation: Any) -> None:
        @hypothesis.settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow, HealthCheck.data_too_large],
        )
        @hypothesis.given(case=operation.as_strategy())
        def send(case: Any) -> None:
            nonlocal sent
            sent += 1
            for name in case.path_parameters or {}:
                if name in names and sent % 2:
                    case.path_parameters[name] = names[name]
            if case.query and "wait_ms" in case.query:
                case.query["wait_ms"] = 0
            if isinstance(case.body, dict) and "wait_ms" in case.body:
                case.body["wait_ms"] = 0
            roles: tuple[GlobalRole, ...] = ("user", "worker") if sent % 3 else ("operator",)
            headers = {"Authorization": f"Bearer {token(roles=roles)}"}
            if sent % 4:
                headers["Towline-Lease"] = names["lease"]
            case.headers = {
                name: value for name, value in (case.headers or {}).items() if value.isascii() and value.isprintable()
            }
            answer = case.call(base_url=url, headers={**case.headers, **headers}, timeout=30)
            case.validate_response(answer, checks=list(CHECKS))

        send()

    for found in schema.get_all_operations():
        operation: Any = cast("Any", found).ok()
        if operation.method.upper() in methods:
            once(operation)
    return sent


async def test_the_server_answers_as_described(gateway: RunningGateway) -> None:
    names = await furnished(gateway)
    reads = await asyncio.to_thread(speak, gateway.url, names, ("GET",))
    writes = await asyncio.to_thread(speak, gateway.url, names, ("PUT", "POST"))
    writes += await asyncio.to_thread(speak, gateway.url, names, ("DELETE",))
    assert reads > EXAMPLES
    assert writes > EXAMPLES


async def test_what_is_read_of_a_furnished_run_fits_its_schema(gateway: RunningGateway) -> None:
    names = await furnished(gateway)
    document = openapi()
    for path in ("", "/events", "/artifacts", "/requests/q", "/commands/k1", "/history", "/inputs"):
        lease = {"Towline-Lease": names["lease"]} if path in ("/history", "/inputs") else {}
        who = gateway.as_("ana", roles=("user", "worker"))
        answer = await gateway.http.get(f"/v1/runs/{names['run']}{path}", headers={**who, **lease})
        assert answer.status_code == (404 if path == "/commands/k1" else 200), answer.text
        known = path.replace("/q", "/{request}").replace("/k1", "/{command}")
        told = document["paths"]["/v1/runs/{run}" + known]["get"]["responses"]
        kind = answer.headers["content-type"]
        schema = told.get(str(answer.status_code), told["default"])["content"][kind]["schema"]
        jsonschema.validate(answer.json(), {**schema, "components": document["components"]})


def test_the_document_of_the_socket_names_every_frame() -> None:
    document = asyncapi()
    receives = {message["$ref"].rpartition("/")[2] for message in document["operations"]["receive"]["messages"]}
    assert receives == set(CLIENT_OPS)
    assert len(document["operations"]["send"]["messages"]) == 16
    refs = set[str]()
    for part in msgspec.json.encode(document).split(b'"$ref":"#/components/schemas/')[1:]:
        refs.add(part.partition(b'"')[0].decode())
    assert refs <= set(document["components"]["schemas"])


async def test_frames_fit_their_schemas(gateway: RunningGateway) -> None:
    names = await furnished(gateway)
    async with gateway.socket() as wire:
        await wire.send(op="ping", id="p")
        await wire.until("pong")
        await wire.send(op="nonsense", id="n")
        await wire.until("problem")
        await wire.subscribe(names["run"], after="0")
        await wire.until("live")
        await wire.send(op="command", id="c", run=names["run"], type="cancel", command_id="c1", data={"grace_ms": 0})
        await wire.until("receipt")
        await wire.until("end")
    document = asyncapi()
    assert {frame["op"] for frame in wire.frames} >= {"welcome", "subscribed", "events", "live", "receipt", "end"}
    for frame in wire.frames:
        schema = document["components"]["messages"][frame["op"]]["payload"]
        jsonschema.validate(frame, {**schema, "components": document["components"]})


PARSE: Final = """
import { Parser } from '@asyncapi/parser';
import { readFileSync } from 'node:fs';
const { document, diagnostics } = await new Parser().parse(readFileSync('asyncapi.json', 'utf8'));
for (const { severity, code, path, message } of diagnostics) if (severity === 0) console.log(code, path, message);
process.exit(document ? 0 : 1);
"""


@pytest.mark.processes
def test_the_parser_of_asyncapi_takes_it(tmp_path: Path) -> None:
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        pytest.skip("there is no npm here; the other tests hold the document against its frames")
    (tmp_path / "asyncapi.json").write_bytes(msgspec.json.encode(asyncapi()))
    (tmp_path / "parse.mjs").write_text(PARSE)
    (tmp_path / "package.json").write_text("{}")
    install = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "@asyncapi/parser@3"]
    if subprocess.run(install, cwd=tmp_path, check=False, capture_output=True, timeout=300).returncode:
        pytest.skip("npm could not bring the parser; the other tests hold the document against its frames")
    parsed = subprocess.run([node, "parse.mjs"], cwd=tmp_path, check=False, capture_output=True, text=True, timeout=60)
    assert parsed.returncode == 0, parsed.stdout + parsed.stderr
