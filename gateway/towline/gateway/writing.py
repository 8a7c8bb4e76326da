"""What the holder of a lease writes over HTTP: events, unfinished text, payloads, artifacts.

Promises that a repeat answers the same and writes nothing twice, that nothing is written under a lease that is no
longer the run's, and that bytes are durable before an event names them. Leaves what an event may say to
`store.channel`.
"""

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from towline.gateway.http import Call, json_answer, route
from towline.gateway.leases import Held, fenced, held, run_closed
from towline.gateway.sending import safe_media_type
from towline.gateway.uploads import chunks, said_sha256
from towline.protocol import deltas
from towline.protocol import event_data as d
from towline.protocol.appending import Append
from towline.protocol.codec import NewEntry, TooLarge
from towline.protocol.cursor import BadCursor, Cursor
from towline.protocol.cursor import parse as parse_cursor
from towline.protocol.errors import problem
from towline.protocol.events import Actor, Audience
from towline.protocol.ids import is_command_id
from towline.protocol.limits import ARTIFACT_BYTES, CHANGED_ATTEMPTS, PAYLOAD_BYTES
from towline.protocol.store import api
from towline.protocol.store.channel import Prepared, prepare
from towline.protocol.store.payloads import BadPayload, PayloadTooLarge, Stored
from towline.protocol.store.spilling import spill
from towline.protocol.validation import to_type

_NAME_CHARS: Final = 255
_DELTAS: Final = 100


class DeltaBody(Struct, frozen=True):
    """One piece of an unfinished message, as on the socket."""

    message: Annotated[str, Meta(min_length=1, max_length=128)]
    offset: Annotated[int, Meta(ge=0, le=2**31)]
    text: Annotated[str, Meta(max_length=16_384)]
    attempt: Annotated[int, Meta(ge=1, le=2**31)] = 1
    role: Annotated[str, Meta(max_length=64)] = "assistant"
    kind: deltas.DeltaKind = "text"
    step: str | None = None
    audience: Audience | None = None


class DeltasBody(Struct, frozen=True):
    """The body of `POST …/deltas`: one delta, or several in `deltas`."""

    deltas: Annotated[list[DeltaBody], Meta(max_length=_DELTAS)]


async def append(call: Call) -> Response:
    """`POST /v1/runs/{run}/events`."""
    lease = await held(call, ended_too=True)
    asked = await call.body(Append)
    seen = _cursor(asked.seen)
    store, number = call.services.store, lease.before + asked.commit
    if asked.commit == lease.number:  # it was written before, and its answer is kept
        facts = await store.facts(lease.run)
        repeat = api.Commit(
            run=lease.run, queue=facts.queue, fence=lease.fence, number=number, seen=facts.head, now_ms=store.now_ms()
        )
        return await _told(call, lease, await _write(call, lease, Prepared(repeat, None)))
    await held(call)  # anything new needs the lease itself
    for _ in range(CHANGED_ATTEMPTS):
        loaded = await store.load(lease.run)
        prepared = await prepare(store, loaded, lease.fence, number, asked, seen=seen)
        try:
            entries = [await spill(entry, call.services.payloads.of(lease.run)) for entry in prepared.commit.entries]
            commit = msgspec.structs.replace(prepared.commit, entries=entries)
            written = await _write(call, lease, Prepared(commit, prepared.ending))
        except TooLarge as error:
            raise problem("too_large", f"An event is too large: {error}.", field="events") from None
        except api.Changed:
            continue
        return await _told(call, lease, written)
    raise problem("overloaded", "The run changes too fast to write this now; send it again.", retry_after_ms=200)


def _cursor(text: str) -> Cursor:
    try:
        return parse_cursor(text)
    except BadCursor as error:
        raise problem("bad_request", f"Not a cursor: {error}.", field="seen", expected="a cursor") from None


async def _write(call: Call, lease: Held, prepared: Prepared) -> api.Committed:
    store, commit = call.services.store, prepared.commit
    try:
        match prepared.ending:
            case None:
                return await store.commit(commit)
            case "close":
                return await store.close(commit)
            case to:
                return await store.release(commit, to)
    except (api.Fenced, api.NoRun):
        raise fenced() from None
    except api.RunClosed:
        raise run_closed() from None
    except api.Unseen:
        raise problem(
            "conflict", "An input stands behind `seen`: read the inputs, then decide again.", field="seen"
        ) from None
    except api.Diverged:
        page = await store.read_log(lease.run, commit.seen, limit=1)
        if page.recovery != "ok" or commit.seen.tag is None:
            raise problem("conflict", "`seen` is no position of this log; read it again.", field="seen") from None
        raise problem(
            "conflict",
            f"The next commit of this lease has the number {lease.number + 1}.",
            field="commit",
            expected=lease.number + 1,
        ) from None


async def _told(call: Call, lease: Held, written: api.Committed) -> Response:
    status = (await call.services.store.load(lease.run)).run.status
    answer = {"first_seq": written.first_seq, "last_seq": written.cursor.seq, "cursor": str(written.cursor)}
    return json_answer({**answer, "status": status})


async def publish(call: Call) -> Response:
    """`POST /v1/runs/{run}/deltas`."""
    lease = await held(call)
    value = await call.body(dict[str, Any])
    body = to_type(value if "deltas" in value else {"deltas": [value]}, DeltasBody, what="the body").deltas
    pieces = [
        deltas.Piece(
            message=delta.message,
            attempt=delta.attempt,
            offset=delta.offset,
            text=delta.text,
            role=delta.role,
            kind=delta.kind,
            step=delta.step,
            audience=delta.audience or deltas.audience_of(delta.kind),
        )
        for delta in body
    ]
    store = call.services.store
    kept = {text.message: text for text in await store.unfinished(lease.run)}
    texts: dict[str, deltas.Piece] = {}
    for piece in pieces:
        if (text := _extended(texts.get(piece.message) or kept.get(piece.message), piece)) is not None:
            texts[piece.message] = text
    try:
        await store.publish_pieces(lease.run, lease.fence, pieces, list(texts.values()))
    except (api.Fenced, api.NoRun):
        raise fenced() from None
    except api.RunClosed:
        raise run_closed() from None
    return Response(status_code=204)


def _extended(before: deltas.Piece | None, piece: deltas.Piece) -> deltas.Piece | None:
    """The text so far with `piece` at its end; None if it does not follow, and the kept one stays."""
    if piece.offset == 0:
        return piece
    if before is None or before.attempt != piece.attempt or before.end != piece.offset:
        return None
    text = (before.text + piece.text)[-deltas.STORED_BYTES // 4 :]
    return msgspec.structs.replace(piece, offset=piece.end - len(text), text=text)


async def keep(call: Call) -> Response:
    """`POST /v1/runs/{run}/payloads`: bytes that are too large for an event."""
    await held(call)
    stored = await _stored(call, PAYLOAD_BYTES)
    return json_answer({"ref": f"pay_{stored.sha256}", "sha256": stored.sha256, "size": stored.size}, 201)


async def put_artifact(call: Call) -> Response:
    """`PUT /v1/runs/{run}/artifacts/{artifact}`: the bytes, then the event that announces them."""
    lease = await held(call)
    artifact, name = call.path("artifact"), call.query("name")
    if not is_command_id(artifact):
        raise problem("bad_request", "An artifact's id is 1 to 128 of [A-Za-z0-9._:-].", field="artifact")
    name = artifact if name is None else name
    if not 1 <= len(name) <= _NAME_CHARS or not name.isprintable():
        raise problem("bad_request", f"A name is 1 to {_NAME_CHARS} printable characters.", field="name")
    said = call.request.headers.get("content-type", "application/octet-stream")
    media_type = safe_media_type(said)
    stored = await _stored(call, ARTIFACT_BYTES)
    store = call.services.store
    data = d.ArtifactCreated(
        artifact=artifact,
        name=name,
        media_type=media_type,
        size=stored.size,
        sha256=stored.sha256,
        step=call.query("step"),
    )
    facts = await store.facts(lease.run)
    entry = NewEntry("artifact.created", Actor("agent", f"wf:{facts.workflow}"), data)
    told = {"id": artifact, **{n: getattr(data, n) for n in ("name", "media_type", "size", "sha256")}}
    try:
        announced = await store.append_once(
            lease.run,
            lease.fence,
            field=f"a|{artifact}",
            value=msgspec.json.encode({**told, "audience": "collaborator"}).decode(),
            entries=[entry],
        )
    except (api.Fenced, api.NoRun):
        raise fenced() from None
    except api.RunClosed:
        raise run_closed() from None
    if announced.stored is None:
        return json_answer({**told, "seq": None if announced.cursor is None else announced.cursor.seq}, 201)
    before = msgspec.json.decode(announced.stored)
    if before["sha256"] != stored.sha256:
        raise problem("conflict", "The run has another artifact under this id.", field="artifact")
    return json_answer(before)


async def _stored(call: Call, limit_bytes: int) -> Stored:
    sha256 = said_sha256(call.request.headers.get("content-digest"))
    try:
        payloads = call.services.payloads.of(call.path("run"))
        return await payloads.put_stream(chunks(call), limit_bytes=limit_bytes, sha256=sha256)
    except PayloadTooLarge:
        raise problem("too_large", "These are too many bytes.", limit=limit_bytes) from None
    except BadPayload:
        raise problem("bad_request", "The bytes have another hash than was said.", field="Content-Digest") from None
    except TimeoutError:
        raise problem("bad_request", "The bytes came too slowly.") from None
    except ClientDisconnect:
        raise problem("bad_request", "The body ended too early.") from None


ROUTES: Final = (
    route("/v1/runs/{run}/events", append, "POST"),
    route("/v1/runs/{run}/deltas", publish, "POST"),
    route("/v1/runs/{run}/payloads", keep, "POST"),
    route("/v1/runs/{run}/artifacts/{artifact}", put_artifact, "PUT"),
)
