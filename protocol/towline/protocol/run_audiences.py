"""Who may read each value of a Run: the audience of the event that set it.

Promises that a value which several events make together has the narrowest audience among them, and that what is gone
from the Run is gone from `Run.audiences`. A wait carries its own; the status is everybody's. Leaves what one caller
sees to `projection`. Read `run` first.
"""

from typing import Any, Final

from towline.protocol.events import EVENTS, Audience, Event
from towline.protocol.run_state import Run, blocker_field
from towline.protocol.values import Blocker

Changes = dict[str, Any]
"""Members of a Run that an event changes, by name."""


def audience_of(event: Event, path: str = "") -> Audience:
    """Who may read the data member `path` of `event` (all of it by default)."""
    row = EVENTS[event.type]
    if event.audience != row.audience:
        return event.audience
    return row.fields.get(path, row.audience)


_SPENDING: Final = {"tool.started", "tool.retrying", "tool.finished", "tool.failed"}
_ADDITIVE: Final = {"usage", "plan"}
"""Fields that many events set together: the narrowest audience among the setters holds."""
_ORDER: Final = {"viewer": 0, "collaborator": 1, "operator": 2}


def audiences_after(run: Run, event: Event, changes: Changes) -> dict[str, Audience]:
    """`Run.audiences` after `event`, which changes these members of `run`."""
    audiences: dict[str, Audience] = dict(run.audiences)
    whole = audience_of(event)
    for name in changes:
        if name in ("waiting_on", "blockers", "status"):
            continue  # each wait says who may read it, each blocker stands below, and the status is everybody's
        setter = whole
        if name == "usage" and event.type not in _SPENDING:
            continue
        if name in _ADDITIVE and _ORDER[audiences.get(name, "viewer")] > _ORDER[setter]:
            continue
        if audiences.get(name, "viewer") != setter:
            audiences[name] = setter
    if "blockers" in changes:
        _keep_blockers(audiences, event, changes["blockers"])
    if "outcome" in changes:
        for member, path in (
            ("outcome.result", "result"),
            ("outcome.result_ref", "result"),
            ("outcome.error.message", "error.message"),
        ):
            if (reader := audience_of(event, path)) != "viewer":
                audiences[member] = reader
    return audiences


def _keep_blockers(audiences: dict[str, Audience], event: Event, blockers: list[Blocker]) -> None:
    left = {blocker_field(blocker.id, member) for blocker in blockers for member in ("", "detail")}
    for field in [field for field in audiences if field.startswith("blockers/") and field not in left]:
        del audiences[field]
    if event.type == "run.blocked":
        raised, path = event.data["blocker"]["id"], "blocker.detail"
    elif event.type == "blocker.raised":
        raised, path = event.data["id"], "detail"
    else:
        return
    audiences[blocker_field(raised)] = audience_of(event)
    audiences[blocker_field(raised, "detail")] = audience_of(event, path)
