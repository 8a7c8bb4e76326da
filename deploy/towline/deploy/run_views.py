"""What `towline run` shows people: lists, one run, one event a line, one request with all that is decided about.

Promises that what a person approves is shown in full, and that nothing an agent wrote is taken for markup.
Read `words` for the sentences.
"""

import time
from collections.abc import Sequence
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from towline.deploy import words
from towline.deploy.words import plain, plain_lines
from towline.protocol.client.views import SeenEvent, SeenRun
from towline.protocol.values import JsonObject

STATUS_STYLE: Final = {
    "completed": "green",
    "failed": "bold red",
    "cancelled": "yellow",
    "blocked": "bold red",
    "waiting": "bold yellow",
    "paused": "yellow",
    "running": "cyan",
}
_PLAN_MARKS: Final = {"done": "✓", "active": "▸", "failed": "✗", "skipped": "–"}


def _status(run: SeenRun) -> Text:
    unverified = run.status == "completed" and (run.outcome or {}).get("verified") is False
    return Text(words.status_of(run), style="bold red" if unverified else STATUS_STYLE.get(run.status, ""))


def runs_table(runs: Sequence[SeenRun]) -> RenderableType:
    """Newest first."""
    if not runs:
        return Text("no runs; start one with: towline run start review --path DIR")
    now_ms = time.time_ns() // 1_000_000
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("run", "workflow", "status", "changed", "headline"):
        table.add_column(name, no_wrap=name in ("run", "workflow"), overflow="fold")
    for run in runs:
        workflow, headline = plain(run.workflow or "", 40), plain(run.headline or "", 80)
        table.add_row(Text(run.id), Text(workflow), _status(run), words.ago(run.updated_at, now_ms), Text(headline))
    return table


def inbox_table(items: Sequence[JsonObject]) -> RenderableType:
    """What waits for the caller, newest first."""
    if not items:
        return Text("nothing waits for you")
    now_ms = time.time_ns() // 1_000_000
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("run", "kind", "since", "what"):
        table.add_column(name, no_wrap=name == "run", overflow="fold")
    for item in items:
        what = item.get("request") or item.get("blocker") or {}
        title = plain(what.get("title") or "", 120)
        table.add_row(
            Text(plain(item["run"]["id"])), Text(plain(item.get("kind"))), words.ago(item["since"], now_ms), Text(title)
        )
    return table


def artifacts_table(artifacts: Sequence[JsonObject]) -> RenderableType:
    """What a run made."""
    if not artifacts:
        return Text("no artifacts yet")
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("artifact", "size", "type", "name"):
        table.add_column(name, no_wrap=name == "artifact", overflow="fold")
    for item in artifacts:
        size = words.size(item.get("size") or 0)
        table.add_row(Text(plain(item["id"])), size, Text(plain(item.get("media_type"))), Text(plain(item.get("name"))))
    return table


def event_line(event: SeenEvent) -> Text:
    """One event of a tail."""
    line = Text()
    line.append(event.ts[11:19] + " ", style="dim")
    line.append(f"{event.seq:>5} ", style="dim")
    line.append(f"{plain(event.type, 20):<18} ", style="red" if event.type in words.BAD else "dim")
    style = STATUS_STYLE.get(event.type.removeprefix("run."), "")
    line.append(words.sentence(event), style="red" if event.type in words.BAD else style)
    return line


def run_view(run: SeenRun) -> RenderableType:
    """Everything about one run that fits a screen."""
    rows: list[tuple[str, RenderableType]] = [("status", _status(run))]
    if run.summary:
        rows.append(("summary", Text(plain(run.summary, 2000))))
    if run.plan:
        rows.append(("plan", _plan(run.plan)))
    for wait in run.waiting_on:
        rows.append(("waits for", _wait(run.id, wait)))
    for blocker in run.blockers:
        rows.append(("hindrance", Text(plain(blocker.get("title")), style="bold red" if blocker.get("stops") else "")))
    outcome = run.outcome or {}
    if error := outcome.get("error"):
        message = error.get("message") or "reason not shown to this credential"
        rows.append(("error", Text(plain(f"{error.get('type')}: {message}", 2000), style="red")))
    for claim in outcome.get("claims") or []:
        cited = ", ".join(str(e.get("artifact") or f"event {e.get('seq')}") for e in claim.get("evidence", []))
        rows.append(("claim", Text.assemble(plain(claim.get("text"), 2000), (f"  [{plain(cited)}]", "dim"))))
    if run.artifacts:
        rows.append(("artifacts", Text(f"{run.artifacts}; towline run artifacts {run.id}")))
    if run.worker:
        rows.append(("worker", Text(plain(f"{run.worker.get('id')}, alive at {run.worker.get('heartbeat_at')}"))))
    rows.append(("events", Text(f"{run.last_seq}, cursor {run.cursor}")))
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value)
    title = Text.assemble((run.id, "bold"), f"  {plain(run.headline or run.workflow or '', 80)}")
    return Group(title, table)


def _plan(items: Sequence[JsonObject]) -> Text:
    lines = Text()
    for index, item in enumerate(items):
        status = item.get("status")
        style = {"done": "green", "active": "cyan", "failed": "red"}.get(str(status), "dim")
        lines.append(
            ("\n" if index else "") + _PLAN_MARKS.get(str(status), "·") + " " + plain(item.get("title")), style
        )
    return lines


def _wait(run: str, wait: JsonObject) -> Text:
    line = Text(plain(f"{wait.get('kind')}: {wait.get('title') or wait.get('id')}"))
    if wait.get("kind") == "approval":
        line.append(f"\n→ towline run approve {run} {plain(wait.get('id'))}", style="bold yellow")
    return line


def request_view(request: str, title: str | None, details: JsonObject) -> RenderableType:
    """An approval with all that its digest binds: what is read here is what is decided."""
    proposal: dict[str, Any] = details.get("proposal") or {}
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    labels = {"intent": "will do", "lineage": "derived from", "permissions": "touches", "blast_radius": "at risk"}
    for field, value in proposal.items():
        lines = [str(part) for part in value] if isinstance(value, list) else [str(value)]
        table.add_row(labels.get(field, plain(field, 40)), Text("\n".join(plain_lines(line) for line in lines)))
    for question in details.get("questions") or []:
        table.add_row(f"question {plain(question.get('id'), 40)}", Text(plain_lines(question.get("text"))))
    if why := details.get("why"):
        table.add_row("why", Text(plain_lines(why)))
    table.add_row("digest", Text(str(details.get("digest")), style="dim"))
    return Panel(table, title=Text(plain(title or request, 200)), title_align="left", border_style="yellow")


def console(*, stderr: bool = False) -> Console:
    """A terminal for people; plain text where there is none."""
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=not stderr)
