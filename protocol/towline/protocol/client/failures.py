"""What a client's calls raise, beside `ProblemError` for what the server refused.

    ProblemError          the server said no; `problem.code` says why (towline.protocol.errors)
    Unreachable           no server answered for as long as one was willing to wait; try again later
    PlaceLost             events are missing or the history is another one, and nobody said how to take it
    SubscriptionOver      the run is no longer shown to this client
    RunNotCompleted       `result` was asked of a run that failed or was cancelled

Leaves the wording for people to the command line. All are `ClientError`s but the first.
"""

from typing import Any

import msgspec

from towline.protocol.client.actions import Closed, Dropped, Placed
from towline.protocol.client.views import SeenRun
from towline.protocol.errors import CODES, Problem, ProblemError


class ClientError(Exception):
    """Root of what a client's call raises without a problem of the server."""


class Unreachable(ClientError):
    """No answer from `url`. Nothing is known of what was asked; asking again with the same ids is safe."""

    def __init__(self, url: str, why: str) -> None:
        super().__init__(f"no answer from {url}: {why}")
        self.url = url


class PlaceLost(ClientError):
    """The server cannot go on where this client was. `placed` says what is missing, and where events go on."""

    def __init__(self, placed: Placed) -> None:
        what = {"reset": "its history is another one now", "snapshot": "some of its events will not come"}
        super().__init__(f"{placed.run}: {what.get(placed.recovery, placed.recovery)} ({placed.code})")
        self.placed = placed


class SubscriptionOver(ClientError):
    """The run is no longer shown: `code` is `revoked`, `purged`, or that of a closed socket."""

    def __init__(self, run: str, code: str) -> None:
        super().__init__(f"{run} is no longer shown to this client: {code}")
        self.code = code


class RunNotCompleted(ClientError):
    """The run ended otherwise; `run` holds its outcome."""

    def __init__(self, run: SeenRun) -> None:
        error = (run.outcome or {}).get("error") or {}
        super().__init__(f"{run.id} {run.status}" + (f": {error['message']}" if error.get("message") else ""))
        self.run = run


def problem_in(body: Any, status: int) -> ProblemError:
    """The refusal in a problem body. What is no problem, or of a code we do not know, becomes one we know."""
    if isinstance(body, dict):
        if body.get("code") not in CODES:
            body = {**body, "detail": f"{body.get('code', status)}: {body.get('detail', 'no reason given')}"}
            body["code"] = _code_of(body.get("status", status))
        try:
            return ProblemError(msgspec.convert(body, Problem))
        except msgspec.ValidationError:
            return ProblemError(Problem(str(body["code"]), str(body.get("detail", ""))))
    return ProblemError(Problem(_code_of(status), f"the server answered {status} without a problem"))


def _code_of(status: object) -> str:
    for code, (known, _) in CODES.items():
        if known == status:
            return code
    return "internal" if isinstance(status, int) and status >= 500 else "bad_request"


def failure_of(run: str, news: Dropped | Closed) -> Exception:
    """Why a subscription or a command of `run` will get nothing more."""
    if isinstance(news, Dropped):
        return SubscriptionOver(run, news.code) if news.problem is None else problem_in(news.problem, 500)
    if news.code == 4501:
        return ProblemError(Problem("unauthenticated", news.reason or "the credential was not accepted"))
    if news.code == 4503:
        return ProblemError(Problem("forbidden", news.reason or "no rights left"))
    return SubscriptionOver(run, f"closed with {news.code} {news.reason}".rstrip())
