"""What is not about one run: workflows, who calls, health, the page at `/`, and addresses that come later.

Promises that every address of the contract answers: what is not served yet says `unsupported`, what is none
`not_found`. Health says whether the process lives, readiness whether it should be sent work.
"""

import asyncio
from pathlib import Path
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import FileResponse, Response

from towline.gateway import access, problems
from towline.gateway.http import Call, json_answer, public, request_id_of, route, services_of
from towline.gateway.metrics import MEDIA_TYPE
from towline.gateway.mounting import page_at, root_of
from towline.protocol import times
from towline.protocol.errors import Problem, problem
from towline.protocol.store.api import StoreError
from towline.protocol.store.starting import choose_version

CONSOLE: Final = Path(__file__).parent / "console"
CONSOLE_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
_ASSETS: Final = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".html": "text/html; charset=utf-8",
}
_READY_S: Final = 2.0


async def workflows(call: Call) -> Response:
    """`GET /v1/workflows`: each workflow once, with the schemas of its newest version."""
    access.require(call.credential, "read")
    announced = await call.services.announced()
    items: list[dict[str, Any]] = []
    for name in sorted({a.workflow.name for a in announced}):
        newest = choose_version(announced, name)
        items.append(
            {
                "name": name,
                "versions": sorted({a.workflow.version for a in announced if a.workflow.name == name}),
                "input_schema": newest.input_schema,
                "signals": newest.signals,
                "updates": newest.updates,
                "queries": newest.queries,
                "accepts": newest.accepts,
                "on_busy": newest.on_busy or "enqueue",
            }
        )
    return json_answer({"items": items, "next_page": None})


async def whoami(call: Call) -> Response:
    """`GET /v1/whoami`."""
    who = call.credential
    return json_answer(
        {
            "subject": who.subject,
            "roles": list(who.roles),
            "groups": list(who.groups),
            "verbs": None if who.verbs is None else list(who.verbs),
            "runs": None if who.runs is None else list(who.runs),
            "expires_at": times.to_wire(who.expires_at_ms),
        }
    )


async def _later(call: Call) -> Response:
    raise problem("unsupported", "This address is part of the contract and is not served yet.")


async def healthz(request: Request) -> Response:
    """`GET /healthz`: the process answers."""
    return json_answer({"status": "ok"})


async def readyz(request: Request) -> Response:
    """`GET /readyz`: the store answers and the gateway stays. Its durability was judged when it started."""
    services = services_of(request)
    why = "The gateway is going away." if services.draining.is_set() else None
    if why is None:
        try:
            async with asyncio.timeout(_READY_S):
                await services.store.sync_clock()
        except (StoreError, TimeoutError):
            why = "The store does not answer."
    if why is None:
        return json_answer({"status": "ready"})
    return problems.answer(Problem("unavailable", why, retry_after_ms=1000), request_id_of(request))


async def metrics(request: Request) -> Response:
    """`GET /metrics`: numbers about this gateway, unless they are served elsewhere."""
    services = services_of(request)
    if services.settings.metrics_bind is not None:
        raise problem("not_found", "There is nothing at this address.")
    return Response(services.metrics.text(), headers={"Cache-Control": "no-store"}, media_type=MEDIA_TYPE)


async def console(request: Request) -> Response:
    """The page at `/`. A token in its fragment never reaches us."""
    page = CONSOLE / "index.html"
    if not page.is_file():
        raise problem("not_found", "This gateway was built without its page.")
    text = page_at(root_of(request), page.read_text())
    return Response(text, headers=CONSOLE_HEADERS, media_type="text/html; charset=utf-8")


async def asset(request: Request) -> Response:
    """A file of the page: one of the folder's own, by its exact name."""
    name = request.path_params["asset"]
    files = {file.name: file for file in CONSOLE.iterdir() if file.is_file()} if CONSOLE.is_dir() else {}
    if name not in files or Path(name).suffix not in _ASSETS:
        raise problem("not_found", "There is nothing at this address.")
    return FileResponse(files[name], headers=CONSOLE_HEADERS, media_type=_ASSETS[Path(name).suffix])


_LATER: Final = (
    ("/v1/runs/{run}/audit", "GET"),
    ("/v1/runs/{run}/export", "GET"),
    ("/v1/runs/{run}/fork", "POST"),
    ("/v1/holds/{scope}", "GET", "PUT", "DELETE"),
    ("/v1/schedules/{schedule}", "GET", "PUT", "DELETE"),
    ("/v1/schedules/{schedule}/fire", "POST"),
    ("/v1/webhooks/{webhook}", "GET", "PUT", "DELETE"),
    ("/v1/webhooks/{webhook}/deliveries", "GET"),
    ("/v1/webhooks/{webhook}/deliveries/{delivery}/redeliver", "POST"),
)
"""Addresses that the contract names and a later release serves."""

ROUTES: Final = (
    route("/v1/workflows", workflows),
    route("/v1/whoami", whoami),
    public("/healthz", healthz),
    public("/readyz", readyz),
    public("/metrics", metrics),
    *(route(path, _later, *methods) for path, *methods in _LATER),
    public("/", console),
    public("/{asset}", asset),
    public("/console/{asset}", asset),
)
