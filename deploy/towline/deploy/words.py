"""Runs and events in words, for a terminal.

Promises one line for every event, also of a type or with data that this version does not know, and text that
cannot move the cursor, hide itself or end the line: what agents and tools wrote comes from outside. Leaves
colour and tables to `run_views`.
"""

import unicodedata
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from towline.protocol import times
from towline.protocol.client.views import SeenEvent, SeenRun
from towline.protocol.values import JsonObject

LINE_CHARS: Final = 400
_HIDDEN: Final = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}


def plain(text: object, limit: int = LINE_CHARS) -> str:
    """`text` on one line, without control and formatting characters, cut at `limit`."""
    words = " ".join(str(text).split())
    shown = "".join("�" if unicodedata.category(c) in _HIDDEN else c for c in words)
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def plain_lines(text: object) -> str:
    """As `plain`, keeping the lines: for what a person decides about, nothing is cut."""
    return "\n".join(plain(line, 10_000) for line in str(text).splitlines())


def duration(ms: float) -> str:
    """`0.8 s`, `3 min 20 s`, `2 h 5 min`, `4 d 1 h`."""
    seconds = ms / 1000
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 24 else f"{hours // 24} d {hours % 24} h"


def size(size_bytes: float) -> str:
    """`512 B`, `3.4 KiB`, `12.0 MiB`."""
    for unit in ("B", "KiB", "MiB"):
        if size_bytes < 1024 or unit == "MiB":
            break
        size_bytes /= 1024
    return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"


def ago(at: str | None, now_ms: int) -> str:
    """How long ago a wire time was, in words; empty for none."""
    if at is None:
        return ""
    return duration(max(0, now_ms - times.from_wire(at))) + " ago"


def _abandoned(data: JsonObject) -> str:
    steps = data.get("abandoned") or []
    if not steps:
        return ""
    names = ", ".join(f"{s.get('name')} (attempt {s.get('attempt')})" for s in steps)
    return f"; effect unknown of {names}"


def _error(data: JsonObject) -> str:
    error = data.get("error") or {}
    return f"{error.get('type', 'error')}: {error.get('message', 'reason not shown')}"


def _failed(data: JsonObject) -> str:
    summary, error = str(data["summary"]), _error(data)
    known = str((data.get("error") or {}).get("message")) in summary
    return f"failed: {summary if known else f'{summary}: {error}'}{_abandoned(data)}"


def _step(data: JsonObject) -> str:
    """The name in a step's id, which is generation, scope, name and occurrence."""
    parts = str(data["step"]).split(":")
    return parts[-2] if len(parts) == 4 else parts[0]


def _waits(data: JsonObject) -> str:
    on = [f"{w.get('kind')} {w.get('name') or ''}".rstrip() for w in data.get("on", [])]
    return "waits for " + (", ".join(on) if on else "nothing that is known")


def _plan(data: JsonObject) -> str:
    return "; ".join(f"{n}. {item.get('title')}" for n, item in enumerate(data.get("items", []), 1))


def _outcome(data: JsonObject) -> str:
    by = ", ".join(str(d.get("by")) for d in data.get("decisions", []))
    return f"{data.get('outcome')}" + (f" by {by}" if by else "")


def _verified(data: JsonObject) -> str:
    word = {True: "verified", False: "NOT verified"}.get(data.get("verified"), "")  # type: ignore[arg-type]
    return f"{data.get('summary')}" + (f" ({word})" if word else "")


_SENTENCES: Final[Mapping[str, Callable[[JsonObject], str]]] = {
    "run.created": lambda d: f"created: {d['headline']} (workflow {d['workflow']}, by {d['owner']})",
    "run.started": lambda d: f"started on {d['worker']}",
    "run.taken_over": lambda d: f"taken over by {d['worker']} from {d['from']}",
    "run.waiting": _waits,
    "run.paused": lambda d: f"paused ({d['code']})" + (f": {d['text']}" if d.get("text") else ""),
    "run.resumed": lambda d: f"goes on, was {d['from']}",
    "run.blocked": lambda d: f"blocked: {d['blocker'].get('title')}",
    "run.continued": lambda d: f"continued as generation {d['generation']}",
    "run.completed": lambda d: f"completed: {_verified(d)}",
    "run.failed": _failed,
    "run.cancelled": lambda d: (
        f"cancelled by {d['by']}"
        + (f": {d['reason']}" if d.get("reason") else "")
        + (" (by force)" if d.get("forced") else "")
        + _abandoned(d)
    ),
    "plan.proposed": lambda d: f"plan: {_plan(d)}",
    "plan.revised": lambda d: f"new plan: {_plan(d)}",
    "plan.step": lambda d: f"step {d['id']} {d['status']}" + (f": {d['note']}" if d.get("note") else ""),
    "tool.scheduled": lambda d: f"{d['name']} waits for a worker of queue {d['queue']}",
    "tool.started": lambda d: f"{d['title']}" + (f" (attempt {d['attempt']})" if d["attempt"] > 1 else ""),
    "tool.retrying": lambda d: f"attempt {d['attempt']} of {_step(d)} failed, another follows: {_error(d)}",
    "tool.finished": lambda d: f"{d['summary']} ({duration(d['duration_ms'])})",
    "tool.failed": lambda d: f"{_step(d)} failed: {_error(d)}",
    "child.started": lambda d: f"started the run {d['run']}",
    "child.finished": lambda d: f"the run {d['run']} {d['status']}",
    "message.completed": lambda d: f"{d['role']}: {d.get('text')}",
    "progress.noted": lambda d: (f"{d['percent']:g} % " if d.get("percent") is not None else "") + f"{d['text']}",
    "artifact.created": lambda d: f"made {d['name']} ({size(d['size'])})",
    "checkpoint.saved": lambda d: f"checkpoint: {d['title']}",
    "approval.requested": lambda d: f"asks for approval: {d['title']} ({d['request']})",
    "approval.voted": lambda d: f"{d['by']} says {d['decision']}" + (f": {d['comment']}" if d.get("comment") else ""),
    "approval.resolved": lambda d: f"the request {d['request']} is {_outcome(d)}",
    "input.requested": lambda d: f"asks: {d['title']} ({d['request']})",
    "input.resolved": lambda d: f"the question {d['request']} is {_outcome(d)}",
    "command.received": lambda d: f"received {d['type']}" + (f" {d['name']}" if d.get("name") else ""),
    "command.applied": lambda d: f"applied {d['type']}" + (f": {d['effect']}" if d.get("effect") else ""),
    "command.rejected": lambda d: f"rejected {d['type']}: {d['text']} ({d['code']})",
    "cancel.requested": lambda d: f"{d['by']} asks it to stop" + (f": {d['reason']}" if d.get("reason") else ""),
    "blocker.raised": lambda d: f"hindrance: {d['title']}",
    "blocker.cleared": lambda d: f"hindrance {d['id']} is gone: {d['how']}",
    "timer.started": lambda d: f"sleeps until {d['due_at']}: {d['why']}",
    "timer.fired": lambda _: "woke up",
}

BAD: Final = frozenset({"run.failed", "run.blocked", "tool.failed", "tool.retrying", "command.rejected"})
"""Types that a person should not overlook."""


def sentence(event: SeenEvent) -> str:
    """What happened, on one line."""
    if event.data is None:
        return plain(f"{event.type} (not shown to this credential)" if event.redacted else event.type)
    try:
        return plain(_SENTENCES[event.type](event.data))
    except (KeyError, TypeError, AttributeError, ValueError):
        # Another version's event, or one that was reduced for this reader: show what is there.
        return plain(f"{event.type} {msgspec.json.encode(event.data).decode()}")


def status_of(run: SeenRun) -> str:
    """The status in words, with its reason."""
    detail = run.status_detail or {}
    if run.stopping is not None:
        return f"{run.status}, stopping until {plain(run.stopping.get('deadline'))}"
    if run.status == "waiting":
        kinds = sorted({str(w.get("kind")) for w in run.waiting_on})
        return "waiting for " + (", ".join(kinds) or "nothing that is known")
    if run.status == "completed":
        return {True: "completed, verified", False: "completed, NOT verified"}.get(
            (run.outcome or {}).get("verified"),  # type: ignore[arg-type]
            "completed",
        )
    return run.status + (f" ({plain(detail['code'])})" if detail.get("code") and not run.is_terminal else "")
