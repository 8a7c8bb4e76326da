"""Requests to people: what an approval shows, its digest, and who may decide it.

Promises that a decision is bound to what was shown: `digest` covers the request's id, its proposal and its
questions in RFC 8785 form. Leaves the state of a request to `run` and to the store.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import rfc8785

from towline.protocol.values import Proposal, Question


def digest_of(request: str, proposal: Proposal | dict[str, Any], questions: Sequence[Question | dict[str, Any]]) -> str:
    """`sha256:` + lower-case hex over the canonical JSON of what a decider is shown."""
    shown = msgspec.to_builtins({"request": request, "proposal": proposal, "questions": list(questions)})
    return "sha256:" + hashlib.sha256(rfc8785.dumps(shown)).hexdigest()


def names_caller(entries: Iterable[str], *, subject: str, role: str, groups: Iterable[str]) -> bool:
    """Whether a `deciders`, `answerers` or `exclude` list names a caller with this role on the run."""
    groups = set(groups)
    for entry in entries:
        kind, _, name = entry.partition(":")
        if (
            (kind == "user" and name == subject)
            or (kind == "role" and name == role)
            or (kind == "group" and name in groups)
        ):
            return True
    return False


def is_decider_entry(entry: str) -> bool:
    """Whether `entry` is a well-formed member of such a list."""
    kind, _, name = entry.partition(":")
    if kind == "role":
        return name in {"owner", "collaborator", "operator"}
    return kind in {"user", "group"} and bool(name)
