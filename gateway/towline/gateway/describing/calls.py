"""The table of calls: for each route what it takes and what it answers, in types.

Promises that every route of the app has its row and every row its route (a test compares them). Problems are not
listed: any call may answer one.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, get_args

from msgspec import Struct

from towline.gateway import answers, claiming, commanding, leases, runs, sharing, writing
from towline.protocol.appending import Append
from towline.protocol.commands import Receipt
from towline.protocol.limits import LIST_DEFAULT, LIST_MAX, PAGE_EVENTS, STORE_PAGE_EVENTS, WAIT_MAX_MS
from towline.protocol.store.starting import StartRun
from towline.protocol.values import Status, WaitKind


class Bytes(Struct, frozen=True):
    """A body or an answer that is not JSON."""

    media_type: str = "application/octet-stream"


class Either(Struct, frozen=True):
    """A JSON value of one of several types."""

    kinds: tuple[Any, ...]


class Parameter(Struct, frozen=True):
    """One member of the query, or a header."""

    name: str
    schema: Mapping[str, Any]
    is_header: bool = False
    is_required: bool = False


class Operation(Struct, frozen=True, kw_only=True):
    """One call. `answers`: what each status brings; None is no body. `is_public`: no credential is asked for."""

    summary: str
    takes: Sequence[Parameter] = ()
    body: Any = None
    is_body_optional: bool = False
    answers: Mapping[int, Any]
    is_public: bool = False


TEXT: Final = {"type": "string"}
CURSOR: Final = {"type": "string", "description": "A cursor, a bare seq, or `latest`."}


def _number(low: int, high: int, default: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": low, "maximum": high, "default": default}


def _query(**schemas: Mapping[str, Any]) -> tuple[Parameter, ...]:
    return tuple(Parameter(name, schema) for name, schema in schemas.items())


def _header(name: str, schema: Mapping[str, Any] = TEXT, *, is_required: bool = False) -> Parameter:
    return Parameter(name, schema, is_header=True, is_required=is_required)


_WAIT: Final = _number(0, WAIT_MAX_MS, 0)
_PAGE: Final = _query(limit=_number(1, LIST_MAX, LIST_DEFAULT), page=TEXT)
_KEY: Final = _header("Idempotency-Key", {"type": "string", "pattern": "^[A-Za-z0-9._:-]{1,128}$"})
_LEASE: Final = _header(leases.HEADER, is_required=True)
_DIGEST: Final = _header("Content-Digest")
_KNOWN: Final = _header("If-None-Match")
_RANGE: Final = _header("Range")
_TICKET: Final = _query(ticket=TEXT)

CALLS: Final[Mapping[tuple[str, str], Operation]] = {
    ("POST", "/v1/runs"): Operation(
        summary="Start a run; with `queue` null and the role worker, hold it at once",
        takes=(_KEY,),
        body=StartRun,
        answers={200: Either((answers.Run, answers.Held)), 201: Either((answers.Run, answers.Held))},
    ),
    ("GET", "/v1/runs"): Operation(
        summary="List the runs that the caller may read, newest first",
        takes=(
            *_query(
                status={"type": "string", "description": f"Some of {', '.join(get_args(Status))}, divided by commas."},
                workflow=TEXT,
                owner=TEXT,
                thread=TEXT,
                label={"type": "string", "description": "name:value"},
                parent=TEXT,
                waiting_on={"enum": list(get_args(WaitKind))},
            ),
            *_PAGE,
        ),
        answers={200: answers.Runs},
    ),
    ("GET", "/v1/runs/{run}"): Operation(
        summary="Read a Run; with `wait_ms` once it has gone beyond `after`",
        takes=(*_query(after=CURSOR, wait_ms=_WAIT), _KNOWN),
        answers={200: answers.Run, 304: None},
    ),
    ("DELETE", "/v1/runs/{run}"): Operation(
        summary="Delete a run that has ended, for good; for operators", answers={204: None}
    ),
    ("POST", "/v1/runs/{run}/cancel"): Operation(
        summary="Cancel a run; answers the Run in every state",
        takes=(_KEY,),
        body=runs.CancelBody,
        is_body_optional=True,
        answers={200: answers.Run},
    ),
    ("GET", "/v1/runs/{run}/events"): Operation(
        summary="Read events behind a cursor, as a page or as server-sent events",
        takes=(
            *_query(after=CURSOR, limit=_number(1, PAGE_EVENTS, 200), wait_ms=_WAIT, include={"enum": ["delta"]}),
            *_TICKET,
            _header("Last-Event-ID"),
        ),
        answers={200: (answers.Events, Bytes("text/event-stream")), 204: None},
    ),
    ("POST", "/v1/runs/{run}/commands"): Operation(
        summary="Send a command; its receipt",
        takes=(_KEY,),
        body=commanding.CommandBody,
        answers={200: Receipt, 202: Receipt},
    ),
    ("GET", "/v1/runs/{run}/commands/{command}"): Operation(
        summary="What became of a command of one's own", answers={200: Receipt}
    ),
    ("GET", "/v1/runs/{run}/requests/{request}"): Operation(
        summary="A question of the run, open or resolved", answers={200: answers.Request}
    ),
    ("GET", "/v1/runs/{run}/queries/{name}"): Operation(
        summary="A value that the workflow published", answers={200: answers.Published}
    ),
    ("GET", "/v1/inbox"): Operation(
        summary="What waits for the caller; with `wait_ms` once it is another than the one held, or not empty",
        takes=(*_query(wait_ms=_WAIT), *_PAGE, _KNOWN),
        answers={200: answers.Inbox, 304: None},
    ),
    ("GET", "/v1/runs/{run}/artifacts"): Operation(
        summary="What the run made, oldest first", takes=_PAGE, answers={200: answers.Artifacts}
    ),
    ("GET", "/v1/runs/{run}/artifacts/{artifact}"): Operation(
        summary="The bytes of an artifact",
        takes=(*_TICKET, _RANGE, _KNOWN),
        answers={200: Bytes("*/*"), 206: Bytes("*/*"), 304: None},
    ),
    ("GET", "/v1/runs/{run}/payloads/{ref}"): Operation(
        summary="Bytes that an event names as its `ref`",
        takes=(_RANGE, _KNOWN),
        answers={200: Bytes("*/*"), 206: Bytes("*/*"), 304: None},
    ),
    ("POST", "/v1/uploads"): Operation(
        summary="Send bytes for a run that will name them",
        takes=(_DIGEST,),
        body=Bytes(),
        answers={201: answers.UploadMade},
    ),
    ("GET", "/v1/runs/{run}/grants"): Operation(summary="Who else may reach the run", answers={200: answers.Grants}),
    ("PUT", "/v1/runs/{run}/grants/{subject}"): Operation(
        summary="Grant a role on the run", body=sharing.GrantBody, answers={200: answers.Grant}
    ),
    ("DELETE", "/v1/runs/{run}/grants/{subject}"): Operation(summary="Take a grant away", answers={204: None}),
    ("POST", "/v1/runs/{run}/shares"): Operation(
        summary="Make a read-only link", body=sharing.ShareBody, answers={201: answers.ShareMade}
    ),
    ("GET", "/v1/runs/{run}/shares"): Operation(summary="The links to the run", answers={200: answers.Shares}),
    ("DELETE", "/v1/runs/{run}/shares/{share}"): Operation(summary="Revoke a link", answers={204: None}),
    ("POST", "/v1/tickets"): Operation(
        summary="A ticket for a client that cannot set headers",
        body=sharing.TicketBody,
        answers={201: answers.TicketMade},
    ),
    ("POST", "/v1/queues/{queue}/claims"): Operation(
        summary="Take the next run of a queue",
        body=claiming.ClaimsBody,
        answers={200: answers.Claimed, 204: None},
    ),
    ("POST", "/v1/runs/{run}/claim"): Operation(
        summary="Take a run of one's own that no queue hands out",
        body=claiming.ClaimBody,
        is_body_optional=True,
        answers={200: answers.Claimed, 204: None},
    ),
    ("POST", "/v1/runs/{run}/lease"): Operation(
        summary="Renew the lease",
        takes=(_LEASE,),
        body=leases.RenewBody,
        is_body_optional=True,
        answers={200: answers.Renewed},
    ),
    ("DELETE", "/v1/runs/{run}/lease"): Operation(summary="Give the run back", takes=(_LEASE,), answers={204: None}),
    ("GET", "/v1/runs/{run}/history"): Operation(
        summary="Events with what earlier holders stored for history",
        takes=(_LEASE, *_query(after=CURSOR, limit=_number(1, STORE_PAGE_EVENTS, STORE_PAGE_EVENTS))),
        answers={200: answers.History},
    ),
    ("GET", "/v1/runs/{run}/inputs"): Operation(
        summary="Commands and decisions since a cursor",
        takes=(_LEASE, *_query(after=CURSOR, wait_ms=_WAIT)),
        answers={200: answers.Inputs},
    ),
    ("POST", "/v1/runs/{run}/events"): Operation(
        summary="Append events and outcomes in one step; give the lease back with the last",
        takes=(_LEASE,),
        body=Append,
        answers={200: answers.Appended},
    ),
    ("POST", "/v1/runs/{run}/deltas"): Operation(
        summary="Publish unfinished text",
        takes=(_LEASE,),
        body=Either((writing.DeltaBody, writing.DeltasBody)),
        answers={204: None},
    ),
    ("POST", "/v1/runs/{run}/payloads"): Operation(
        summary="Keep bytes that are too large for an event",
        takes=(_LEASE, _DIGEST),
        body=Bytes(),
        answers={201: answers.Kept},
    ),
    ("PUT", "/v1/runs/{run}/artifacts/{artifact}"): Operation(
        summary="Hand in an artifact; its event is appended in the same step",
        takes=(_LEASE, *_query(name=TEXT, step=TEXT), _DIGEST),
        body=Bytes(),
        answers={200: answers.ArtifactMade, 201: answers.ArtifactMade},
    ),
    ("GET", "/v1/workflows"): Operation(summary="What can be started", answers={200: answers.Workflows}),
    ("GET", "/v1/whoami"): Operation(summary="What the credential says", answers={200: answers.Whoami}),
    ("GET", "/healthz"): Operation(summary="The process lives", answers={200: answers.Health}, is_public=True),
    ("GET", "/metrics"): Operation(
        summary="Numbers about this gateway", answers={200: Bytes("text/plain")}, is_public=True
    ),
    ("GET", "/readyz"): Operation(summary="Whether to send work here", answers={200: answers.Health}, is_public=True),
    ("GET", "/openapi.json"): Operation(
        summary="This document", takes=(_KNOWN,), answers={200: dict[str, Any], 304: None}, is_public=True
    ),
    ("GET", "/asyncapi.json"): Operation(
        summary="The frames of the socket", takes=(_KNOWN,), answers={200: dict[str, Any], 304: None}, is_public=True
    ),
    ("GET", "/"): Operation(summary="The page for people", answers={200: Bytes("text/html")}, is_public=True),
    ("GET", "/{asset}"): Operation(summary="A file of that page", answers={200: Bytes("*/*")}, is_public=True),
    ("GET", "/console/{asset}"): Operation(summary="A file of that page", answers={200: Bytes("*/*")}, is_public=True),
}
