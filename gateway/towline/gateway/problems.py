"""The border: whatever went wrong leaves as one problem, with the id under which the log knows it.

Promises that no exception text of ours, no stack trace and no address of the store reaches a caller. What is not a
refusal is logged once, with its request id, and answered `internal`.
"""

import logging
from typing import Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response

from towline.protocol.errors import Problem, ProblemError
from towline.protocol.store import api

_log: Final = logging.getLogger("towline.gateway")

MEDIA_TYPE: Final = "application/problem+json"
_RETRY_AWAY_MS: Final = 1_000


def problem_of(error: Exception, request_id: str) -> Problem:
    """What the caller is told about `error`."""
    match error:
        case ProblemError():
            return error.problem
        case api.NoRun():
            return Problem("not_found", "There is no such run, or you may not read it.")
        case api.RunGone():
            return Problem("gone", "The run was deleted.")
        case api.RunClosed():
            return Problem("run_closed", "The run has ended; nothing more reaches it.")
        case api.StoreUnavailable():
            return Problem("unavailable", "The store does not answer; try again.", retry_after_ms=_RETRY_AWAY_MS)
        case api.StoreFull():
            return Problem("overloaded", "The store is full; nothing was accepted.", retry_after_ms=10 * _RETRY_AWAY_MS)
        case HTTPException():
            return Problem("not_found", "There is nothing at this address, or not with this method.")
        case _:
            log_fault(error, request_id)
            return Problem("internal", "Something here is broken; tell the operator the request id.")


def log_fault(error: BaseException, request_id: str) -> None:
    """Writes down what is nobody's refusal, under the id that the caller was told."""
    _log.error("request %s failed", request_id, exc_info=error)


def answer(problem: Problem, request_id: str, *, status: int | None = None) -> Response:
    """The HTTP answer of a problem."""
    wire = problem.to_wire(request_id)
    if status is not None:
        wire["status"] = status
    headers = {"Cache-Control": "no-store"}
    if problem.retry_after_ms is not None:
        headers["Retry-After"] = str(max(1, -(-problem.retry_after_ms // 1000)))
    if problem.code == "unauthenticated":
        headers["WWW-Authenticate"] = 'Bearer realm="towline"'
    return Response(msgspec.json.encode(wire), status or problem.status, headers, MEDIA_TYPE)
