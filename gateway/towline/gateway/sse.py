"""Server-sent events: one run as a stream that a browser's EventSource reads, resumed by its cursor.

Promises the socket's frames with one event a frame, `id:` being the cursor, and the same subscription machine behind
them. Until the first byte a request that is wrong gets its status; what may heal is answered 200 with `retry:` and
`bye`, because anything else ends an EventSource for good. After `end` the stream closes and a reconnect gets 204.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack
from typing import Final

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from towline.gateway import problems
from towline.gateway.admission import Turned
from towline.gateway.http import Call
from towline.gateway.watching import Watching
from towline.protocol import frames as f
from towline.protocol.closecodes import CloseCode
from towline.protocol.cursor import LATEST, BadCursor, parse
from towline.protocol.errors import ProblemError, problem
from towline.protocol.limits import SUBSCRIPTION_LIMIT
from towline.protocol.store.api import StoreError, StoreFull, StoreUnavailable

MEDIA_TYPE: Final = "text/event-stream"
COMMENT_S: Final = 15.0
_RETRY_MS: Final = 1_000
_COME_BACK_MS: Final = (1_000, 3_000)
"""When who loses a stream without a word comes back: not all at once, as browsers would, and not as late as a drain."""
_HEADERS: Final = {
    "Cache-Control": "no-store, no-transform",
    "X-Accel-Buffering": "no",
    "X-Content-Type-Options": "nosniff",
}


class Slot:
    """The peer of one subscription: one frame waits here to be taken. `changed` is set when there is news."""

    def __init__(self) -> None:
        self.frame: f.ServerFrame | None = None
        self.changed = asyncio.Event()
        self._taken = asyncio.Event()

    @property
    def is_lagging(self) -> bool:
        """See `peer.Peer`. The small buffer of the machine is what a stream may hold."""
        return False

    takes_wires = False
    """See `peer.Peer`. A stream is no socket: it takes frames."""

    def write(self, wire: bytes) -> bool:
        """See `peer.Peer`."""
        return False

    async def ready(self) -> None:
        """See `peer.Peer`."""

    async def send(self, frame: f.ServerFrame) -> None:
        """See `peer.Peer`."""
        while self.frame is not None:
            self._taken.clear()
            await self._taken.wait()
        self.frame = frame
        self.changed.set()

    async def lose_place(self) -> None:
        """See `peer.Peer`."""
        reason = "the store is older than what you hold; come back with your cursor"
        await self.send(f.Bye(int(CloseCode.LOST_PLACE), reason, _RETRY_MS))

    def take(self) -> f.ServerFrame | None:
        """The frame that waits, if one does."""
        frame, self.frame = self.frame, None
        self._taken.set()
        return frame


class _Streaming(StreamingResponse):
    """The answer, which ends the subscription also when the caller left before its first byte."""

    def __init__(self, content: AsyncIterator[bytes], task: "asyncio.Task[None]", held: ExitStack) -> None:
        super().__init__(content, headers=_HEADERS, media_type=MEDIA_TYPE)
        self._task = task
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._task.cancel()
            self._held.close()


def is_wanted(call: Call) -> bool:
    """Whether the caller asks for a stream instead of a page."""
    return MEDIA_TYPE in call.request.headers.get("accept", "")


async def stream(call: Call) -> Response:
    """`GET /v1/runs/{run}/events` as a stream."""
    run, slot = call.path("run"), Slot()
    try:
        _, facts = await call.services.reach(call.credential, run)
        frame = _subscription(call, run)
        if facts.sealed and call.request.headers.get("last-event-id") == str(facts.head):
            return Response(status_code=204)
        with ExitStack() as held:
            await _let_in(call, held)
            watching = Watching(
                call.services, slot, call.credential, frame, one_event_a_frame=True, address=call.who.address
            )
            task = asyncio.create_task(watching.run_to_end())
            task.add_done_callback(lambda _: slot.changed.set())
            await _until_begun(task, slot)
            return _Streaming(_frames(call, slot, task), task, held.pop_all())
    except (StoreUnavailable, StoreFull):
        away = _bye(CloseCode.OVERLOADED, "the store does not answer", _RETRY_MS)
        return Response(away, headers=_HEADERS, media_type=MEDIA_TYPE)
    except Turned as turned:
        later = _bye(turned.code, turned.reason, turned.retry_ms or _RETRY_MS)
        return Response(later, headers=_HEADERS, media_type=MEDIA_TYPE)


async def _let_in(call: Call, held: ExitStack) -> None:
    """Takes the stream's place. A refusal is a `Turned`: a status that is none of 200 would end an EventSource."""
    admission = call.services.admission
    held.enter_context(admission.stream(call.who.subject))
    try:
        await admission.subscribe(call.who)
    except ProblemError as error:
        why = error.problem
        code = CloseCode.RATE_LIMITED if why.code == "rate_limited" else CloseCode.OVERLOADED
        raise Turned(code, why.detail, why.retry_after_ms) from None


def _subscription(call: Call, run: str) -> f.Subscribe:
    """What the query asks for. A cursor that the browser brings back wins over the one in its address."""
    asked = call.query("after")
    after = call.request.headers.get("last-event-id") or (LATEST if asked is None else asked)
    if after != LATEST:
        try:
            parse(after)
        except BadCursor as error:
            raise problem("bad_request", f"Not a cursor: {error}.", field="after", expected="a cursor") from None
    if call.query("include") not in (None, "delta"):
        raise problem("bad_request", "There is nothing of this name to include.", field="include", known=["delta"])
    limit = None if call.query("limit") is None else call.query_int("limit", 1, 1, SUBSCRIPTION_LIMIT)
    return f.Subscribe("events", run, after, limit, ["delta"] if call.query("include") else [])


async def _until_begun(task: "asyncio.Task[None]", slot: Slot) -> None:
    """Returns when the first frame is there. Raises what the subscription raised instead."""
    try:
        while slot.frame is None and not task.done():
            slot.changed.clear()
            await slot.changed.wait()
    except asyncio.CancelledError:
        task.cancel()
        raise
    if slot.frame is None:
        task.result()


async def _frames(call: Call, slot: Slot, task: "asyncio.Task[None]") -> AsyncIterator[bytes]:
    services = call.services
    with services.leaving(slot.changed.set):
        while True:
            slot.changed.clear()
            left_s = call.credential.expires_at_ms / 1000 - time.time()
            if left_s <= 0:
                yield _bye(CloseCode.CREDENTIAL_ENDED, "the credential has ended; get a new one", _RETRY_MS)
                return
            if services.draining.is_set():
                yield _bye(CloseCode.DRAIN, "the server is going away", services.farewell_ms())
                return
            if (frame := slot.take()) is not None:
                if isinstance(frame, f.Bye):
                    yield _bye(CloseCode(frame.code), frame.reason, _RETRY_MS)
                    return
                if isinstance(frame, f.Subscribed):
                    yield f"retry: {random.randint(*_COME_BACK_MS)}\n".encode()
                yield _event(frame)
            elif task.done():
                if (error := task.exception()) is not None:
                    yield _failed(call, error)
                return
            else:
                try:
                    async with asyncio.timeout(min(COMMENT_S, left_s)):
                        await slot.changed.wait()
                except TimeoutError:
                    yield b":\n\n"


def _event(frame: f.ServerFrame) -> bytes:
    op = str(frame.__struct_config__.tag)
    cursor = f"id: {frame.cursor}\n" if isinstance(frame, f.Subscribed | f.Events | f.Live | f.End) else ""
    return f"{cursor}event: {op}\ndata: ".encode() + _on_one_line(f.encode(frame)) + b"\n\n"


_LINE_ENDS: Final = ((b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085"))
"""What readers that follow Unicode take for line ends, beside those that JSON escapes anyway."""


def _on_one_line(wire: bytes) -> bytes:
    """The same JSON, on one line for every reader: these characters stand only inside its strings."""
    for character, escape in _LINE_ENDS:
        wire = wire.replace(character, escape)
    return wire


def _bye(code: CloseCode, reason: str, retry_ms: int) -> bytes:
    return f"retry: {retry_ms}\n".encode() + _event(f.Bye(int(code), reason, retry_ms))


def _failed(call: Call, error: BaseException) -> bytes:
    """What the stream says when the subscription failed after its first byte."""
    if isinstance(error, ProblemError | StoreError):
        why = problems.problem_of(error, call.request_id)
        return _event(f.refused(why, request_id=call.request_id, run=call.path("run")))
    problems.log_fault(error, call.request_id)
    return _bye(CloseCode.LOST_PLACE, "a fault of the server", _RETRY_MS)
