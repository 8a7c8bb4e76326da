"""The border: whatever went wrong leaves as one problem, with the id under which the log knows it.

Promises that no exception text of ours, no stack trace and no address of the store reaches a caller. What is not a
refusal is logged once, with its request id and where it arose, and answered `internal`.
"""

import logging
import traceback
from pathlib import Path
from typing import Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response

from towline.protocol.errors import Problem, ProblemError
from towline.protocol.store import api

_log: Final = logging.getLogger("towline.gateway")

MEDIA_TYPE: Final = "application/problem+json"
_RETRY_AWAY_MS: Final = 1_000
_FRAMES: Final = 12


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
    """Writes down what is nobody's refusal, under the id that the caller was told: in one line, without its message.

    What an exception says may quote what it was about: arguments of a call to the store, a body, a token.
    """
    _log.error("request %s failed: %s", request_id, whereabouts(error))


def whereabouts(error: BaseException) -> str:
    """The kind of an exception and where it arose, innermost first, and the same of what caused it."""
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
    places = " < ".join(f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in reversed(frames))
    text = f"{type(error).__name__} at {places or 'nowhere'}"
    if isinstance(error, BaseExceptionGroup):
        text += "".join(f"; with {whereabouts(one)}" for one in error.exceptions[:_FRAMES])
    cause = error.__cause__ or error.__context__
    return text if cause is None else f"{text}; after {whereabouts(cause)}"


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
