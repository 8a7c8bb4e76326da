"""Frames: the units on a socket, every one of the contract, both ways.

Promises that `read_client_frame` turns any text into a typed frame, a problem to answer, or `NotAFrame` (close
4500), and that what the server sends is one of the structs here. `events` frames carry the log's own bytes: they
are joined, never decoded and encoded again. Leaves to `session` when a frame is allowed, to `subscription` what
follows from one. Unknown fields are ignored; unknown ops and words are refused with the list of the known.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from towline.protocol.commands import Receipt
from towline.protocol.cursor import Cursor
from towline.protocol.errors import Problem, ProblemError, problem
from towline.protocol.ids import is_run_id
from towline.protocol.limits import FRAME_ID_CHARS, SUBSCRIPTION_LIMIT, WAIT_MAX_MS, Limits
from towline.protocol.validation import NotJson, read_json, to_type

SUBPROTOCOL: Final = "towline.v1"
PROTOCOL: Final = 1

FrameId = Annotated[str, Meta(max_length=FRAME_ID_CHARS)]
Recovery = Literal["resumed", "reset", "snapshot"]
RecoveryCode = Literal["ahead", "diverged", "trimmed", "limited"]
UnsubscribedCode = Literal["requested", "revoked", "purged", "shed", "replaced"]
Range = tuple[int, int]


class NotAFrame(ValueError):
    """Not a JSON object with a string `op`: the peer speaks something else, close with 4500."""


class FrameRefused(Exception):
    """A frame whose members are wrong: answer `problem` with the `id` and `run` it named, and go on."""

    def __init__(self, why: Problem, frame_id: str | None, run: str | None) -> None:
        super().__init__(why.detail)
        self.problem = why
        self.id = frame_id
        self.run = run


# Client to server ------------------------------------------------------------------------------------------------


class Hello(Struct, frozen=True, tag_field="op", tag="hello"):
    """First frame, unless the upgrade carried the credential. `client` is a name for logs."""

    token: str | None = None
    ticket: str | None = None
    client: Any = None


class Subscribe(Struct, frozen=True, tag_field="op", tag="subscribe"):
    """Watch a run from a cursor. `after` stays untyped: what is wrong with it is said after the access check."""

    id: FrameId
    run: str
    after: Any = "latest"
    limit: Annotated[int, Meta(ge=1, le=SUBSCRIPTION_LIMIT)] | None = None
    include: list[Literal["delta"]] = []


class Unsubscribe(Struct, frozen=True, tag_field="op", tag="unsubscribe"):
    """End the subscription of a run; the socket lives on."""

    id: FrameId
    run: str


class CommandFrame(Struct, frozen=True, tag_field="op", tag="command"):
    """A command; `data` is judged by `commands.decode`. `not_after` is a time on the wire."""

    id: FrameId
    run: str
    type: str
    command_id: str
    data: Any = None
    wait: Literal["applied"] | None = None
    timeout_ms: Annotated[int, Meta(ge=0, le=WAIT_MAX_MS)] | None = None
    not_after: str | None = None


class Watch(Struct, frozen=True, tag_field="op", tag="watch"):
    """Hints about many runs."""

    id: FrameId
    feed: Literal["inbox", "runs"]
    filter: Any = None


class Auth(Struct, frozen=True, tag_field="op", tag="auth"):
    """A newer credential of the same subject."""

    id: FrameId
    token: str


class Ping(Struct, frozen=True, tag_field="op", tag="ping"):
    """Asks for a `pong` with the same id."""

    id: FrameId | None = None


ClientFrame = Hello | Subscribe | Unsubscribe | CommandFrame | Watch | Auth | Ping

_CLIENT: Final[dict[str, type[ClientFrame]]] = {
    "hello": Hello,
    "subscribe": Subscribe,
    "unsubscribe": Unsubscribe,
    "command": CommandFrame,
    "watch": Watch,
    "auth": Auth,
    "ping": Ping,
}
CLIENT_OPS: Final = tuple(_CLIENT)


def read_client_frame(text: str | bytes) -> ClientFrame:
    """The frame in `text`. Raises `NotAFrame`, or `FrameRefused` with the problem that names the field."""
    try:
        value = read_json(text)
    except NotJson as error:
        raise NotAFrame(str(error)) from None
    except ProblemError as error:
        raise FrameRefused(error.problem, None, None) from None
    if not isinstance(value, dict) or not isinstance(op := value.get("op"), str):
        raise NotAFrame("a frame is a JSON object with a string `op`")
    frame_id = _echo(value.get("id"))
    run = value.get("run")
    run = run if isinstance(run, str) and is_run_id(run) else None
    try:
        if (kind := _CLIENT.get(op)) is None:
            raise problem("bad_request", "No frame has this op.", field="op", known=list(CLIENT_OPS))
        frame = to_type(value, kind, what=f"a {op} frame")
        if isinstance(frame, Subscribe | Unsubscribe | CommandFrame) and not is_run_id(frame.run):
            raise problem("bad_request", "No run has such an id.", field="run", expected="a run id")
    except ProblemError as error:
        raise FrameRefused(error.problem, frame_id, run) from None
    return frame


def _echo(frame_id: object) -> str | None:
    return frame_id if isinstance(frame_id, str) and len(frame_id) <= FRAME_ID_CHARS else None


# Server to client ------------------------------------------------------------------------------------------------


class Welcome(Struct, frozen=True, tag_field="op", tag="welcome"):
    """The credential was good."""

    connection: str
    heartbeat_ms: int
    limits: Limits
    expires_at: str
    protocol: int = PROTOCOL


class Subscribed(Struct, frozen=True, tag_field="op", tag="subscribed", omit_defaults=True):
    """Comes before any event of the run. `cursor` is the position before the first event that will be sent."""

    id: str
    run: str
    recovery: Recovery
    projection: dict[str, Any]
    cursor: str
    head: int
    first_seq: int
    recovery_code: RecoveryCode | None = None
    lost: Range | None = None
    skipped: Range | None = None


class Events(Struct, frozen=True, tag_field="op", tag="events"):
    """Events in order of seq, each the exact bytes its reader may see."""

    run: str
    events: list[msgspec.Raw]
    cursor: str
    replay: bool


class Live(Struct, frozen=True, tag_field="op", tag="live"):
    """All that was stored when the subscription began has been sent."""

    run: str
    cursor: str


class Delta(Struct, frozen=True, tag_field="op", tag="delta", omit_defaults=True):
    """Text of an unfinished message. `role`, `kind` and `step` come at offset 0."""

    run: str
    message: str
    attempt: int
    offset: int
    text: str
    role: str | None = None
    kind: Literal["text", "reasoning", "tool_arguments"] | None = None
    step: str | None = None
    truncated: bool = False


class End(Struct, frozen=True, tag_field="op", tag="end"):
    """The terminal event was sent; the subscription is over."""

    run: str
    cursor: str
    status: str


class Unsubscribed(Struct, frozen=True, tag_field="op", tag="unsubscribed", omit_defaults=True):
    """The subscription of this run is over; the socket lives on."""

    run: str
    code: UnsubscribedCode
    id: str | None = None
    retry_ms: int | None = None


class ReceiptFrame(Receipt, frozen=True, tag_field="op", tag="receipt", kw_only=True, omit_defaults=True):
    """The receipt of a command frame."""

    id: str


class Watching(Struct, frozen=True, tag_field="op", tag="watching"):
    """The hints begin; once more when some may have been lost: read the list again."""

    id: str
    cursor: str


class Changed(Struct, frozen=True, tag_field="op", tag="changed"):
    """A hint that a run of a watched feed changed."""

    id: str
    run: str
    status: str
    last_seq: int
    open_requests: int


class WorkerBeat(Struct, frozen=True):
    """When the worker that holds a run last renewed, and the step it works on."""

    heartbeat_at: str
    step: str | None


class Heartbeat(Struct, frozen=True, tag_field="op", tag="heartbeat"):
    """Sign of life: the heads of quiet subscriptions. One above the client's seq means subscribe again."""

    heads: dict[str, int]
    workers: dict[str, WorkerBeat]


class AuthRequired(Struct, frozen=True, tag_field="op", tag="auth_required"):
    """The credential ends at `deadline`; send `auth` before."""

    deadline: str


class Authenticated(Struct, frozen=True, tag_field="op", tag="authenticated"):
    """The newer credential holds."""

    id: str
    subject: str
    expires_at: str


class Pong(Struct, frozen=True, tag_field="op", tag="pong", omit_defaults=True):
    """The answer to `ping`."""

    id: str | None = None


class ProblemFrame(Struct, frozen=True, tag_field="op", tag="problem", omit_defaults=True):
    """A refusal that concerns one frame or one run."""

    problem: dict[str, Any]
    id: str | None = None
    run: str | None = None


class Bye(Struct, frozen=True, tag_field="op", tag="bye", omit_defaults=True):
    """Comes just before a close, with the same code. `retry_ms`: when to come back."""

    code: int
    reason: str
    retry_ms: int | None = None


ServerFrame = (
    Welcome
    | Subscribed
    | Events
    | Live
    | Delta
    | End
    | Unsubscribed
    | ReceiptFrame
    | Watching
    | Changed
    | Heartbeat
    | AuthRequired
    | Authenticated
    | Pong
    | ProblemFrame
    | Bye
)

_json: Final = msgspec.json.Encoder()
_server: Final = msgspec.json.Decoder(ServerFrame)


def encode(frame: ServerFrame | ClientFrame) -> bytes:
    """The frame as it travels."""
    return _json.encode(frame)


def events(run: str, raw: Sequence[bytes], cursor: Cursor, *, replay: bool) -> Events:
    """An `events` frame of envelopes that are passed through as they are."""
    return Events(run, [msgspec.Raw(r) for r in raw], str(cursor), replay)


def receipt(frame_id: str, answer: Receipt) -> ReceiptFrame:
    """The frame of a receipt."""
    return ReceiptFrame(id=frame_id, **{name: getattr(answer, name) for name in Receipt.__struct_fields__})


def refused(why: Problem, *, request_id: str, frame_id: str | None = None, run: str | None = None) -> ProblemFrame:
    """The `problem` frame of a refusal."""
    return ProblemFrame(problem=why.to_wire(request_id), id=frame_id, run=run)


def read_server_frame(text: str | bytes) -> ServerFrame:
    """The server frame in `text`, for tests and tools. Raises `msgspec.ValidationError` for an unknown one."""
    return _server.decode(text)
