"""`towline demo`: a review that loses its worker and its watcher, carries on, asks, and ends with evidence.

Promises that everything shown is real: a stack of real processes on this machine, SIGKILL for the worker that
holds the run, a socket that is cut, a proposal that waits for a person, and a closing table that is counted from
the log (read again from cursor 0) and from what the watcher was handed. Exit code 0 only when the run completed
and nothing was lost or doubled. Nothing runs afterwards; the report stays in the folder that is named.

Read `_Demo.play` first: it is the story. Counting is in `demo_tally`.
"""

import asyncio
import contextlib
import importlib.util
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote

from rich.table import Table
from rich.text import Text

from towline.deploy import run_views, words
from towline.deploy.demo_tally import Tally, tally_of
from towline.deploy.dev import stop_signals
from towline.deploy.local import Ready, Stack, StackError, StackOptions
from towline.deploy.local_http import get_json
from towline.deploy.settings import SettingsError
from towline.protocol import times
from towline.protocol.client.connect import Client
from towline.protocol.client.failures import ClientError
from towline.protocol.client.views import SeenEvent, SeenRun
from towline.protocol.errors import ProblemError
from towline.protocol.values import JsonObject

TARGET: Final = "redis"
"""The installed package that is reviewed when no folder is named."""

KILL_AT_PERCENT: Final = 40
TAKEOVER_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.05
_PAGE_EVENTS: Final = 1_000


class DemoFailed(Exception):
    """The demo could not be played to its end; the message says where it stopped."""


async def run_demo(folder: Path | None, *, yes: bool, port: int, data: Path | None) -> int:
    """Plays the demo and returns the exit code. Raises `SettingsError`, `StackError` and what `Stack` raises."""
    target = target_of(folder)
    if not yes and not sys.stdin.isatty():
        raise SettingsError("nobody can be asked for the approval here: add --yes, or run it in a terminal")
    out = Path(tempfile.mkdtemp(prefix="towline-demo-"))
    options = StackOptions(data=data or out / "data", port=port, allow_paths=[target], work=out / "copies")
    log = _StackLog(out / "stack.log")
    demo = _Demo(Stack(options, log), target, out, yes=yes)
    with contextlib.closing(log), stop_signals(demo.stack.kill_all) as stopped:
        playing = asyncio.create_task(demo.play())
        asked = asyncio.create_task(stopped.wait())
        try:
            await asyncio.wait((playing, asked), return_when=asyncio.FIRST_COMPLETED)
            if not playing.done():
                raise KeyboardInterrupt
            return await playing
        except (DemoFailed, ClientError, ProblemError) as error:
            raise StackError(f"{error}; what the processes said is in {out / 'stack.log'}") from error
        finally:
            asked.cancel()
            playing.cancel()
            await asyncio.wait((playing,))
            await demo.stack.stop()
            if data is None:
                shutil.rmtree(out / "data", ignore_errors=True)


def target_of(folder: Path | None) -> Path:
    """The folder to review. Raises `SettingsError` when it is none."""
    if folder is not None:
        if not folder.is_dir():
            raise SettingsError(f"{folder} is no folder: name one with Python files in it")
        return folder.resolve()
    spec = importlib.util.find_spec(TARGET)
    if spec is None or not spec.submodule_search_locations:
        raise SettingsError(f"the package {TARGET} is not installed: name a folder to review")
    return Path(spec.submodule_search_locations[0]).resolve()


class _StackLog:
    """Takes the lines of the stack: all into a file, what became of a process also on the screen."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    def close(self) -> None:
        """Nothing more will be said."""
        self._file.close()

    def __call__(self, line: str) -> None:
        self._file.write(line + "\n")
        self._file.flush()
        if " | " not in line:
            _say(f"         [{line}]", "dim")


class _Demo:
    """One performance. `received` is what the watcher was handed, over all its sockets."""

    def __init__(self, stack: Stack, target: Path, out: Path, *, yes: bool) -> None:
        self.stack = stack
        self._target = target
        self._out = out
        self._yes = yes
        self._received: list[SeenEvent] = []
        self._killed_ms: int | None = None
        self._decided = False

    async def play(self) -> int:
        """The story, from the first process to the table."""
        _say("Starting a store, a gateway and two workers …", "dim")
        ready = await self.stack.start()
        _say(f"Ready. To look on in a browser: {ready.page}")
        # One client acts, as a person would; the watcher is another, with sockets of its own.
        async with Client(ready.url, ready.token, name="towline-demo") as person:
            run = await person.start("review", {"source": {"path": str(self._target)}})
            _say(f"Started the run {run.id}: a review of {self._target}\n")
            cursor = await self._watch_until_killed(ready, person, run.id)
            if self._killed_ms is not None:
                await self._until_taken_over(person, run.id)
                await self._watch_to_the_end(ready, person, run.id, cursor)
            ended = await person.wait(run.id)
            await self._save_artifacts(person, run.id)
        log = await _read_log(ready, run.id)
        return self._close(ended, tally_of(log, self._received, self._killed_ms))

    async def _watch_until_killed(self, ready: Ready, person: Client, run: str) -> str:
        """Watches, kills the worker in the middle, cuts the socket; the cursor to come back with."""
        async with Client(ready.url, ready.token, name="towline-demo-watcher") as watcher:
            async for event in watcher.events(run):
                await self._receive(event, person)
                if self._killed_ms is None and _is_the_middle(event):
                    await self._kill_holder(person, run)
                # Resume points lie between batches: a cursor is kept once all before it was taken.
                if self._killed_ms is not None and event.cursor is not None:
                    watcher.drop_link()
                    _say(
                        f"────── the watcher's socket is cut after event {event.seq}, cursor {event.cursor}\n",
                        "bold red",
                    )
                    return event.cursor
        return "0"

    async def _kill_holder(self, person: Client, run: str) -> None:
        """SIGKILL for the worker that holds the run."""
        worker = (await person.get(run)).worker or {}
        holder = str(worker.get("id", ""))
        for name, pid in self.stack.pids().items():
            if re.search(rf"(?<!\d){pid}(?!\d)", holder):
                self._killed_ms = time.time_ns() // 1_000_000
                os.kill(pid, signal.SIGKILL)
                _say(f"\n────── {name}, process {pid}, holds the run and is killed: kill -9 {pid}", "bold red")
                return

    async def _until_taken_over(self, person: Client, run: str) -> None:
        """Waits, with the watcher away, until another worker has written something."""
        seen = await person.get(run)
        before, holder = seen.last_seq, (seen.worker or {}).get("id")
        until_s = time.monotonic() + TAKEOVER_TIMEOUT_S
        while not seen.is_terminal and not (seen.last_seq > before and (seen.worker or {}).get("id") != holder):
            if time.monotonic() > until_s:
                raise DemoFailed(f"no worker took the run over within {TAKEOVER_TIMEOUT_S:g} s")
            await asyncio.sleep(_POLL_S)
            seen = await person.get(run)

    async def _watch_to_the_end(self, ready: Ready, person: Client, run: str, cursor: str) -> None:
        async with Client(ready.url, ready.token, name="towline-demo-watcher") as watcher:
            _say(f"────── the watcher is back, on a new socket, from cursor {cursor}", "bold green")
            async for event in watcher.events(run, cursor):
                await self._receive(event, person)
                if event.type == "run.taken_over" and self._killed_ms is not None:
                    taken_s = (times.from_wire(event.ts) - self._killed_ms) / 1000
                    _say(
                        f"────── taken over {taken_s:.1f} s after the kill; what was recorded is not run again",
                        "bold green",
                    )

    async def _receive(self, event: SeenEvent, person: Client) -> None:
        self._received.append(event)
        run_views.console().print(run_views.event_line(event))
        if event.type == "approval.requested" and isinstance(event.data, dict) and not self._decided:
            self._decided = True
            await self._decide(person, event.run, str(event.data["request"]))

    async def _decide(self, person: Client, run: str, request: str) -> None:
        """Shows what is asked, in full, and lets the person decide."""
        asked = await person.request(run, request)
        details: JsonObject = asked["request"]
        await self._save_artifacts(person, run)
        run_views.console().print(run_views.request_view(request, asked.get("title"), details))
        _say(f"The proposed diff: {self._report / 'fixes.patch'}")
        approved = self._yes or await _yes_or_no("Approve? [y/N] ")
        decide = person.approve if approved else person.reject
        receipt = await decide(run, request, details["digest"])
        _say(
            f"{'Approved' if approved else 'Rejected'}{' (--yes)' if self._yes else ''}: {receipt['status']}\n", "bold"
        )

    @property
    def _report(self) -> Path:
        return self._out / "report"

    async def _save_artifacts(self, person: Client, run: str) -> None:
        await asyncio.to_thread(self._report.mkdir, exist_ok=True)
        for artifact in await person.artifacts(run):
            # The name is the workflow's word; a path in it would lead out of the folder.
            path = self._report / Path(words.plain(artifact["name"], 100)).name
            await asyncio.to_thread(path.write_bytes, await person.artifact(run, artifact["id"]))

    def _close(self, run: SeenRun, tally: Tally) -> int:
        _say("")
        _say(f"The run is {words.status_of(run)}: {words.plain((run.outcome or {}).get('summary') or run.summary)}")
        for claim in (run.outcome or {}).get("claims") or []:
            _say(f"  · {words.plain(claim.get('text'))} [{words.plain(_cited(claim.get('evidence') or []))}]")
        _say(f"The report, the findings and the diff are in {self._report}\n", "bold")
        run_views.console().print(table_of(tally))
        if self._killed_ms is None:
            _say("The run was over before its worker could be killed: name a larger folder.", "bold red")
        good = run.status == "completed" and tally.is_whole and self._killed_ms is not None
        return 0 if good else 1


def _is_the_middle(event: SeenEvent) -> bool:
    """Some results stand in the log, and more work is begun."""
    data = event.data if isinstance(event.data, dict) else {}
    return event.type == "progress.noted" and (data.get("percent") or 0) >= KILL_AT_PERCENT


def _cited(evidence: Sequence[JsonObject]) -> str:
    """Evidence on one line: how many, and the first ones."""
    names = [f"event {item['seq']}" if "seq" in item else f"artifact {item.get('artifact')}" for item in evidence]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def table_of(tally: Tally) -> Table:
    """The closing table."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim")
    table.add_column(justify="right")
    table.add_column(style="dim")
    taken = "–" if tally.takeover_ms is None else f"{tally.takeover_ms / 1000:.1f} s"
    for name, value, meaning in (
        ("steps run", tally.steps, f"one result each; recorded twice: {tally.recorded_twice}"),
        ("repeated by the crash", tally.repeated, "begun on the killed worker, no result there"),
        ("replayed", tally.replayed, "taken from the log, not run again"),
        ("events in the log", tally.events, "read again from cursor 0"),
        ("gaps", tally.gaps, "missed by the watcher"),
        ("duplicates", tally.duplicates, "handed to the watcher twice"),
        ("altered", tally.altered, "handed over unlike the log has them"),
        ("kill to takeover", taken, "from SIGKILL to run.taken_over"),
    ):
        table.add_row(name, str(value), meaning)
    return table


async def _read_log(ready: Ready, run: str) -> list[JsonObject]:
    """The whole log over HTTP, from cursor 0."""
    events = list[JsonObject]()
    cursor, closed = "0", False
    while not closed:
        path = f"/v1/runs/{quote(run)}/events?after={quote(cursor)}&limit={_PAGE_EVENTS}"
        answer = await asyncio.to_thread(get_json, ready.url, path, token=ready.token, timeout_s=10.0)
        if answer.status != 200:
            raise DemoFailed(f"the log cannot be read again: the gateway answers {answer.status or 'nothing'}")
        events += answer.body["events"]
        cursor, closed = answer.body["cursor"], answer.body["closed"] or not answer.body["events"]
    return events


async def _yes_or_no(question: str) -> bool:
    """Asks on the terminal, without a thread that could not be interrupted. No answer is no."""
    print(question, end="", flush=True)
    async with _readable(sys.stdin.fileno()) as readable:
        await readable.wait()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


@contextlib.asynccontextmanager
async def _readable(fd: int) -> AsyncIterator[asyncio.Event]:
    event = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(fd, event.set)
    try:
        yield event
    finally:
        loop.remove_reader(fd)


def _say(text: str, style: str = "") -> None:
    run_views.console().print(Text(text, style=style))
