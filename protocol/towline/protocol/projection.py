"""What one caller sees of a Run and of its events: the redaction policy, applied at one place.

Promises that a value with an audience above the caller's role is null and named, that everyone sees every seq,
and that an event a caller may read whole leaves as the bytes that stand in the log. Leaves to the gateway who
the caller is. Read `events` (audiences) and `run` first.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from towline.protocol import approvals
from towline.protocol.codec import Entry, type_of
from towline.protocol.cursor import Cursor
from towline.protocol.events import EVENTS, Audience
from towline.protocol.run_state import Run, blocker_field

Role = Literal["share", "viewer", "collaborator", "owner", "operator", "worker"]
"""A caller's role on one run. `share` is a viewer through a link, `worker` the holder of its lease."""

_RANK: Final = {"viewer": 0, "collaborator": 1, "operator": 2}
_READS: Final[dict[Role, int]] = {
    "share": 0,
    "viewer": 0,
    "collaborator": 1,
    "owner": 1,
    "operator": 2,
    "worker": 2,
}


_CLASS: Final[dict[Role, Role]] = {"owner": "collaborator", "worker": "operator"}


def reader_class(role: Role) -> Role:
    """The role that stands for all who are shown the same bytes of every event as `role`."""
    return _CLASS.get(role, role)


def may_read(role: Role, audience: Audience) -> bool:
    """Whether `role` reads a value of this audience."""
    return _READS[role] >= _RANK[audience]


class Caller(Struct, frozen=True):
    """Who reads: the subject of the credential, its role on this run and its groups.

    `decides` is false for a credential that may never decide (role worker, or minted for a run). `owns`: an operator
    who started this run is its owner as well, for better (`deciders`) and for worse (`exclude`).
    """

    subject: str
    role: Role
    groups: Sequence[str] = ()
    decides: bool = True
    owns: bool = False


class Heartbeat(Struct, frozen=True):
    """`worker` of a Run: who holds the lease, when it last renewed, and the step it works on."""

    id: str
    heartbeat_at: str
    step: str | None


def project_run(
    run: Run,
    caller: Caller,
    *,
    cursor: Cursor,
    first_seq: int = 1,
    worker: Heartbeat | None = None,
    actions: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    """The Run as `caller` reads it, as plain JSON values."""
    wire: dict[str, Any] = msgspec.to_builtins(run)
    del wire["audiences"]
    redacted = []
    for path, audience in run.audiences.items():
        if may_read(caller.role, audience):
            continue
        name, _, member = path.partition(".")
        if _null(wire, name, member):
            redacted.append(path)
    wire["waiting_on"] = [_project_wait(wait, caller, redacted) for wait in wire["waiting_on"]]
    for blocker in wire["blockers"]:
        _project_blocker(blocker, run.audiences, caller.role, redacted)
    if caller.role == "share":
        _hide_subjects(wire)
    if wire["outcome"] is not None and wire["outcome"]["result_ref"] is None:
        del wire["outcome"]["result_ref"]
    wire["role"] = "viewer" if caller.role == "share" else caller.role
    wire["actions"] = list(actions)
    wire["redacted"] = sorted(set(redacted))
    wire["worker"] = None if worker is None or caller.role == "share" else msgspec.to_builtins(worker)
    wire["first_seq"] = first_seq
    wire["cursor"] = str(cursor)
    return wire


def _project_blocker(
    blocker: dict[str, Any], audiences: Mapping[str, Audience], role: Role, redacted: list[str]
) -> None:
    """Hides of a blocker what is above `role`; that there is one, and of which kind, everybody is told."""
    hidden = (
        [] if may_read(role, audiences.get(blocker_field(blocker["id"]), "viewer")) else ["title", "by", "remedies"]
    )
    if not may_read(role, audiences.get(blocker_field(blocker["id"], "detail"), "operator")):
        hidden.append("detail")
    for member in hidden:
        if blocker.get(member) is not None:
            blocker[member] = None
            redacted.append(f"blockers.{member}")


def _null(wire: dict[str, Any], name: str, member: str) -> bool:
    """Null `name`, or its dotted `member`; whether there was anything to hide."""
    *path, last = [name, *member.split(".")] if member else [name]
    holder: Any = wire
    for part in path:
        holder = holder.get(part)
        if not isinstance(holder, dict):
            return False
    if holder.get(last) is None:
        return False
    holder[last] = None
    return True


def may_answer(request: Any, caller: Caller) -> bool:
    """Whether `caller` may decide or answer a request with these `deciders` / `answerers` and `exclude`."""
    if not caller.decides or not isinstance(request, dict):
        return False
    entries = request.get("deciders", request.get("answerers"))
    if entries is None:
        return False

    def named(members: Sequence[str]) -> bool:
        roles = {caller.role, "owner"} if caller.owns else {caller.role}
        return any(
            approvals.names_caller(members, subject=caller.subject, role=role, groups=caller.groups) for role in roles
        )

    return named(entries) and not named(request.get("exclude", ()))


def may_answer_wait(wait: dict[str, Any], caller: Caller) -> bool:
    """`may_answer` for one member of `waiting_on`, also where its request is only a reference."""
    return may_answer(wait["request"] if wait["deciders"] is None else wait, caller)


def _project_wait(wait: dict[str, Any], caller: Caller, redacted: list[str]) -> dict[str, Any]:
    audience = wait.pop("audience")
    wait["may_answer"] = may_answer_wait(wait, caller)
    del wait["deciders"], wait["exclude"]
    if not may_read(caller.role, audience) and not wait["may_answer"]:
        wait["title"] = wait["request"] = None
        redacted.append("waiting_on.request")
    return wait


_SUBJECT_FIELDS: Final = ("owner", "by", "worker", "subject")
_HOLD_SUBJECTS: Final = ("stopping", "status_detail", "blockers", "blocker", "waiting_on", "request", "decisions")
"""Members whose own members may name subjects; labels, scope and results are the user's and stay as they are."""


def _hide_subjects(wire: Any) -> None:
    """A share link shows what happened, not who: every subject is null except the system's."""
    if isinstance(wire, list):
        for item in wire:
            _hide_subjects(item)
    elif isinstance(wire, dict):
        for name, value in wire.items():
            if name in _SUBJECT_FIELDS and value != "system":
                wire[name] = None
            elif name in _HOLD_SUBJECTS:
                _hide_subjects(value)


@cache
def _own_audiences(kind: str, audience: Audience) -> dict[str, Audience]:
    """Members of the data with an audience of their own, while the event carries its default one."""
    row = EVENTS.get(kind)
    return row.fields if row is not None and row.audience == audience else {}


@cache
def passes_whole(kind: str, audience: Audience, role: Role) -> bool:
    """Whether nothing of such an event is hidden from `role`: a matter of the vocabulary, asked for each event sent."""
    fields = _own_audiences(kind, audience)
    return role != "share" and all(may_read(role, each) for each in (audience, *fields.values()))


def project_entry(entry: Entry, role: Role) -> bytes:
    """The envelope of `entry` as `role` reads it; the log's own bytes where nothing is hidden."""
    meta_audience = entry.meta.audience
    kind = type_of(entry.raw)
    if passes_whole(kind, meta_audience, role):
        return entry.raw
    row = EVENTS.get(kind)
    fields = _own_audiences(kind, meta_audience)
    wire: dict[str, Any] = msgspec.json.decode(entry.raw)
    if may_read(role, meta_audience):
        hidden = [_drop(wire["data"], path.split(".")) for path, a in fields.items() if not may_read(role, a)]
        if row is not None and wire["ref"] is not None and not may_read(role, fields.get(row.spill or "", "viewer")):
            wire["ref"] = None
            hidden.append(True)
        if any(hidden):
            wire["redacted"] = True
        elif role != "share":
            return entry.raw
    else:
        kept = {path for path, audience in fields.items() if may_read(role, audience)}
        wire["data"] = {k: v for k, v in wire["data"].items() if k in kept} if kept else None
        wire["ref"] = None
        wire["redacted"] = True
    if role == "share":
        if wire["actor"]["kind"] != "system":
            wire["actor"]["id"] = None
        _hide_subjects(wire["data"])
        if kind == "run.taken_over" and wire["data"] is not None:  # elsewhere `from` is a status
            wire["data"]["from"] = None
    return msgspec.json.encode(wire)


def _drop(data: Any, path: list[str]) -> bool:
    *parents, last = path
    for part in parents:
        data = data.get(part) if isinstance(data, dict) else None
    if isinstance(data, dict) and last in data:
        del data[last]
        return True
    return False
