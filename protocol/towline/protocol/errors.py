"""Problems: every refusal that leaves Towline, as RFC 9457 problem details.

    ProblemError                      carries one Problem to the border (HTTP answer, problem frame, receipt)

Promises that each code has one status and one title, and that `detail` says what happened and what to do.
Raise through `problem(code, detail, …)`; the border adds `request_id`.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

CODES: Final[Mapping[str, tuple[int, str]]] = {
    "bad_request": (400, "The request is not valid"),
    "unauthenticated": (401, "A valid credential is needed"),
    "forbidden": (403, "The credential does not allow this"),
    "not_found": (404, "No such thing, or not readable"),
    "conflict": (409, "It exists already, or its state does not allow this"),
    "already_decided": (409, "The request was decided before"),
    "expired": (410, "Too late"),
    "run_closed": (409, "The run has ended"),
    "fenced": (409, "The lease belongs to another worker now"),
    "unsupported": (409, "The run does not handle this"),
    "held": (409, "Stopped by a pause, a hold or a budget"),
    "idempotency_mismatch": (409, "The key was used for another body"),
    "gone": (410, "The run was deleted"),
    "digest_mismatch": (412, "The decision is for another version of the proposal"),
    "too_large": (413, "Too large"),
    "unsupported_media": (415, "The media type is not accepted"),
    "rate_limited": (429, "Too many"),
    "overloaded": (503, "Overloaded, nothing was accepted"),
    "unavailable": (503, "The store is away, nothing was accepted"),
    "internal": (500, "A fault of the server"),
}
"""Code → status and title. `type` is `https://towline.dev/problems/<code>`."""

TYPE_PREFIX: Final = "https://towline.dev/problems/"


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """One refusal. Fields beyond the first five are present where the code calls for them."""

    code: str
    detail: str
    field: str | None = None
    expected: Any = None
    needs: str | None = None
    max: int | None = None
    limit: int | None = None
    request: Any = None
    retry_after_ms: int | None = None
    known: list[str] | None = None

    @property
    def status(self) -> int:
        return CODES[self.code][0]

    def to_wire(self, request_id: str | None = None) -> dict[str, Any]:
        """The body of an `application/problem+json` answer, or the `problem` of a frame."""
        status, title = CODES[self.code]
        wire: dict[str, Any] = {"type": TYPE_PREFIX + self.code, "title": title, "status": status}
        wire.update(msgspec.to_builtins(self))
        if request_id is not None:
            wire["request_id"] = request_id
        return wire


class ProblemError(Exception):
    """A refusal on its way to the caller; `problem` is what they will read."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(f"{problem.code}: {problem.detail}")
        self.problem = problem


def problem(code: str, detail: str, **fields: Any) -> ProblemError:
    """The exception for a refusal: `raise problem("bad_request", "…", field="input")`."""
    if code not in CODES:
        raise ValueError(f"{code!r} is no problem code")
    return ProblemError(Problem(code, detail, **fields))
