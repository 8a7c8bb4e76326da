"""What a caller can do with a run now: the `actions` of a Run.

Promises to offer only what would be accepted in the state that was read. Pure; whoever sends the command is judged
again by `store.acceptance`.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from towline.protocol.commands import may_send
from towline.protocol.projection import Caller, may_answer_wait
from towline.protocol.run_state import Run
from towline.protocol.values import JsonObject


def actions_of(run: Run, caller: Caller, signals: Mapping[str, JsonObject] | None) -> list[dict[str, Any]]:
    """`[{type, name?, request?, schema?}]` for `caller`; `signals` is what the workflow declares, with schemas."""
    if run.is_terminal:
        return []
    actions: list[dict[str, Any]] = []
    for wait in run.waiting_on:
        if wait.kind == "approval" and may_answer_wait(msgspec.structs.asdict(wait), caller):
            actions += [{"type": kind, "request": wait.id} for kind in ("approve", "reject")]
        if wait.kind == "input" and may_answer_wait(msgspec.structs.asdict(wait), caller):
            schema = (wait.request or {}).get("schema")  # not there where the request is too large for the Run
            actions.append({"type": "respond", "request": wait.id} | ({} if schema is None else {"schema": schema}))
    if may_send("signal", caller.role):
        actions += [
            {"type": "signal", "name": name, "schema": schema} for name, schema in sorted((signals or {}).items())
        ]
    if may_send("pause", caller.role):
        if run.pausing or run.status == "paused":
            actions.append({"type": "resume"})
        elif run.status in ("running", "waiting"):
            actions.append({"type": "pause"})
    if may_send("cancel", caller.role):
        actions.append({"type": "cancel"})
    return actions
