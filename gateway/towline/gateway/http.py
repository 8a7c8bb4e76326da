"""What every HTTP handler of ours has in common: who calls, what they sent, how it is answered.

Promises that a handler gets a `Call` with a verified credential, reads bodies and query through it (size, depth and
type are checked there, refusals name the field), and that what it raises leaves as a problem. Leaves what the
addresses mean to the modules that register them.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import Any, Final, TypeVar

import msgspec
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from towline.gateway import problems
from towline.gateway.credentials import TicketKind
from towline.gateway.limits import Who, address_in
from towline.gateway.services import Services
from towline.protocol.cursor import LATEST, BadCursor, Cursor
from towline.protocol.cursor import parse as parse_cursor
from towline.protocol.errors import ProblemError, problem
from towline.protocol.ids import is_command_id, random_id
from towline.protocol.limits import BODY_BYTES
from towline.protocol.projection import Caller
from towline.protocol.tokens import BadToken, Credential
from towline.protocol.validation import NotJson, read_json, to_type

T = TypeVar("T")

REQUEST_ID: Final = "Towline-Request-Id"
EXPOSED: Final = (
    *(REQUEST_ID, "Idempotency-Replayed", "Towline-Existing", "ETag", "Location", "Retry-After"),
    *("Content-Disposition", "Content-Range"),
)
_BODY_S: Final = 30.0
_security: Final = logging.getLogger("towline.security")
_json: Final = msgspec.json.Encoder()


class RequestIds:
    """Middleware: gives each request an id, and says it on every answer, whoever makes it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = random_id("req")
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (REQUEST_ID.lower().encode(), request_id.encode())]
            await send(message)

        await self._app(scope, receive, send_with_id)


class Call:
    """One authenticated request."""

    def __init__(self, request: Request, services: Services, credential: Credential) -> None:
        self.request = request
        self.services = services
        self.credential = credential

    @property
    def request_id(self) -> str:
        return request_id_of(self.request)

    @property
    def who(self) -> Who:
        """The caller as limits count them."""
        return Who(self.credential.subject, address_in(self.request.client))

    def path(self, name: str) -> str:
        """A part of the address."""
        return str(self.request.path_params[name])

    def require_unexpired(self) -> None:
        """Raises `unauthenticated` if the credential has ended while the answer was waited for."""
        if self.credential.expires_at_ms <= time.time() * 1000:
            raise problem("unauthenticated", "The credential has ended; get a new one.")

    async def reach_again(self, run: str) -> Caller:
        """The caller on `run` now, for an answer that was waited for. Raises `unauthenticated`, `not_found`."""
        self.require_unexpired()
        caller, _ = await self.services.reach(self.credential, run)
        return caller

    async def body(self, kind: type[T], *, optional: bool = False) -> T:
        """The JSON body as a `kind`; with `optional` an empty body is an empty object."""
        declared = self.request.headers.get("content-type", "").partition(";")[0].strip().lower()
        raw = await self._read()
        if optional and not raw.strip():
            return to_type({}, kind, what="the body")
        if declared and declared != "application/json" and not declared.endswith("+json"):
            raise problem("unsupported_media", "Send JSON, and say so: Content-Type: application/json.")
        try:
            value = read_json(raw)
        except NotJson as error:
            raise problem("bad_request", f"The body is not JSON: {error}.", expected="a JSON object") from None
        return to_type(value, kind, what="the body")

    async def _read(self) -> bytes:
        raw = bytearray()
        try:
            async with asyncio.timeout(_BODY_S):
                async for chunk in self.request.stream():
                    raw += chunk
                    if len(raw) > BODY_BYTES:
                        raise problem("too_large", "The body is too large.", limit=BODY_BYTES)
        except TimeoutError:
            raise problem("bad_request", f"The body did not come within {_BODY_S:g} s.") from None
        except ClientDisconnect:
            raise problem("bad_request", "The body ended too early.") from None
        return bytes(raw)

    def query(self, name: str) -> str | None:
        """The value of a query parameter, or None; given twice it is refused."""
        values = self.request.query_params.getlist(name)
        if len(values) > 1:
            raise problem("bad_request", f"{name!r} stands more than once in the query.", field=name)
        return values[0] if values else None

    def query_int(self, name: str, default: int, low: int, high: int) -> int:
        """A whole number from the query, within `low` and `high`."""
        text = self.query(name)
        if text is None:
            return default
        if text.isascii() and text.isdigit() and len(text) < 16 and low <= int(text) <= high:
            return int(text)
        raise problem(
            "bad_request",
            f"{name!r} is not a whole number from {low} to {high}.",
            field=name,
            expected=f"int from {low} to {high}",
        )

    def query_cursor(self, name: str = "after") -> Cursor | str | None:
        """A cursor from the query; `latest` stays the word."""
        text = self.query(name)
        if text is None or text == LATEST:
            return text
        try:
            return parse_cursor(text)
        except BadCursor as error:
            raise problem("bad_request", f"Not a cursor: {error}.", field=name, expected="a cursor") from None

    def idempotency_key(self) -> str | None:
        """The Idempotency-Key header."""
        key = self.request.headers.get("idempotency-key")
        if key is not None and not is_command_id(key):
            raise problem(
                "bad_request",
                "An Idempotency-Key is 1 to 128 of [A-Za-z0-9._:-].",
                field="Idempotency-Key",
                expected="1 to 128 of [A-Za-z0-9._:-]",
            )
        return key


Handler = Callable[[Call], Awaitable[Response]]


def request_id_of(request: Request) -> str:
    """The id that `RequestIds` gave."""
    return str(request.state.request_id)


def services_of(request: Request) -> Services:
    """The services of the gateway that serves `request`."""
    services: Services = request.app.state.services
    return services


def bearer(header: str | None) -> str | None:
    """The token of an Authorization header; None without one. Raises `unauthenticated` for another scheme."""
    if header is None:
        return None
    scheme, _, token = header.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise problem("unauthenticated", "Send `Authorization: Bearer <JWT>`.")
    return token.strip()


async def authenticate(request: Request, ticket: TicketKind | None = None) -> Credential:
    """Who calls: the bearer, or the ticket in the query where one of this kind serves. Raises `unauthenticated`."""
    headers = request.headers.getlist("authorization")
    credentials = services_of(request).credentials
    presented = request.query_params.getlist("ticket") if ticket is not None and not headers else []
    try:
        if ticket is not None and len(presented) == 1:
            where = {name: request.path_params.get(name) for name in ("run", "artifact")}
            return await credentials.redeem(presented[0], ticket, request.headers.get("origin"), **where)
        token = bearer(headers[0] if len(headers) == 1 else None)
        if token is None:
            raise problem("unauthenticated", "Send `Authorization: Bearer <JWT>`, once.")
        return await credentials.verify(token)
    except BadToken as error:
        raise problem("unauthenticated", f"The credential is not valid. {error}") from None


def route(path: str, handler: Handler, *methods: str, ticket: TicketKind | None = None) -> Route:
    """A route whose handler gets an authenticated `Call`; `ticket`: which kind of ticket may stand in its query."""

    async def endpoint(request: Request) -> Response:
        credential = await authenticate(request, ticket)
        services = services_of(request)
        # What a worker needs to keep and to end its runs is never refused.
        is_worker = "worker" in credential.roles
        try:
            with nullcontext() if is_worker else services.admission.request():
                return await handler(Call(request, services, credential))
        except ProblemError as error:
            if error.problem.code == "forbidden":
                _security.warning("denied: %r, %s %s", credential.subject, request.method, path)
            raise

    return public(path, endpoint, *methods)


def public(path: str, endpoint: Callable[[Request], Awaitable[Response]], *methods: str) -> Route:
    """A route that asks for no credential. What it raises leaves as a problem."""

    async def guarded(request: Request) -> Response:
        try:
            return await endpoint(request)
        except Exception as error:
            if isinstance(error, ProblemError) and error.problem.code == "unauthenticated":
                _security.warning("denied: no valid credential, %s %s", request.method, path)
            return await on_error(request, error)

    return Route(path, guarded, methods=list(methods or ("GET",)))


async def on_error(request: Request, error: Exception) -> Response:
    """What any exception leaves as."""
    request_id = request_id_of(request)
    why = problems.problem_of(error, request_id)
    services_of(request).metrics.refused(why.code)
    return problems.answer(why, request_id)


def json_answer(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON answer; no cache keeps it."""
    return Response(_json.encode(value), status, {"Cache-Control": "no-store", **(headers or {})}, "application/json")


MIDDLEWARE: Final = (Middleware(RequestIds),)
