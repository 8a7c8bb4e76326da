"""What is still open in a log: commands without outcome, open requests, steps without result.

Promises that whoever ends a run, its holder or a sweep, ends the same things in the same words: `last_entries`
stands right before the terminal event. Pure: feed it every event once, in order.
"""

from typing import Final

import msgspec
from msgspec import Struct

from towline.protocol import event_data as d
from towline.protocol.codec import NewEntry
from towline.protocol.events import Actor, Event, data_of
from towline.protocol.store.api import CommandOutcome, Timer
from towline.protocol.values import Abandoned

SYSTEM: Final = Actor("system", "towline")
_ABANDONED_BYTES: Final = 20_000
"""How long the list of steps in a terminal event may be; beyond it the event would not fit its limit."""


class OpenCommand(Struct, frozen=True):
    """An accepted command that has no outcome yet."""

    subject: str
    command_id: str
    type: str
    seq: int
    counts: bool


class OpenEnds:
    """The book: `commands` by seq of acceptance; `requests` (value: the kind), `steps` and `timers` by id."""

    def __init__(self) -> None:
        self.commands: dict[int, OpenCommand] = {}
        self.requests: dict[str, str] = {}
        self.steps: dict[str, Abandoned] = {}
        self.timers: dict[str, Timer] = {}
        self._accepted: dict[tuple[str, str], int] = {}

    def observe(self, event: Event) -> None:
        """Takes in the next event."""
        self.note(event, data_of(event))

    def note(self, event: Event, data: Struct) -> None:
        """As `observe`, for who has read the event's typed data."""
        match data:
            case d.ToolStarted() as data:
                self.steps[data.step] = Abandoned(data.step, data.name, data.attempt, data.effect)
            case d.ToolFinished() | d.ToolFailed() as data:  # one that waits for its next attempt has no result
                self.steps.pop(data.step, None)
            case d.CommandReceived() as data:
                counts = data.type in ("signal", "update", "revise", "add_context")
                command = OpenCommand(event.actor.id, data.command_id, data.type, event.seq, counts)
                self.commands[event.seq] = command
                self._accepted[data.command_id, data.type] = event.seq
            case d.CommandApplied() | d.CommandRejected() as data:
                seq = event.cause if event.cause in self.commands else self._accepted.get((data.command_id, data.type))
                if seq is not None:
                    self.commands.pop(seq, None)
            case d.ApprovalRequested() as data:
                self.requests[data.request] = "approval"
            case d.InputRequested() as data:
                self.requests[data.request] = "input"
            case d.ApprovalResolved() | d.InputResolved() as data:
                self.requests.pop(data.request, None)
            case d.TimerStarted() as data:
                self.timers[data.timer] = Timer("timer", data.timer)
            case d.TimerFired() as data:
                self.timers.pop(data.timer, None)
            case d.RunWaiting() as data:
                for wait in data.on:
                    if wait.kind == "timer" and wait.name == "retry":
                        self.timers[wait.id] = Timer("retry", wait.id)
            case _:
                pass

    def first(self, most: int) -> "OpenEnds":
        """A book with the first `most` commands and the first `most` requests only, for who must write in parts."""
        part = OpenEnds()
        part.commands = dict(list(self.commands.items())[:most])
        part.requests = dict(list(self.requests.items())[:most])
        return part

    def last_entries(self) -> list[NewEntry]:
        """The rejections and withdrawals that precede a terminal event."""
        entries = [
            NewEntry(
                "command.rejected",
                SYSTEM,
                d.CommandRejected(
                    command_id=c.command_id, type=c.type, code="unconsumed", text="The run ended before it was read."
                ),
                cause=c.seq,
            )
            for c in self.commands.values()
        ]
        for request, kind in self.requests.items():
            if kind == "approval":
                withdrawn = d.ApprovalResolved(request=request, outcome="withdrawn", decisions=[])
                entries.append(NewEntry("approval.resolved", SYSTEM, withdrawn))
            else:
                entries.append(
                    NewEntry("input.resolved", SYSTEM, d.InputResolved(request=request, outcome="withdrawn"))
                )
        return entries

    def outcomes(self) -> list[CommandOutcome]:
        """What repeats of the rejected commands will be told."""
        text = '{"status":"rejected","code":"unconsumed","text":"The run ended before it was read."}'
        return [CommandOutcome(c.subject, c.command_id, text) for c in self.commands.values()]

    def abandoned(self) -> list[Abandoned]:
        """The steps that had begun and have no result; of very many the first, and one line for the others."""
        listed: list[Abandoned] = []
        size_bytes = 0
        for step in self.steps.values():
            size_bytes += len(msgspec.json.encode(step)) + 1
            if size_bytes > _ABANDONED_BYTES:
                more = len(self.steps) - len(listed)
                listed.append(Abandoned("…", f"and {more} more steps", 0, "write"))
                break
            listed.append(step)
        return listed
