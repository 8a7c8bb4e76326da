"""What a holder must remember of the log beside the machine: status, open things, the book of steps.

Promises that `apply`, fed the log in order (what was read and what was just committed), answers what an ending
needs: which commands have no outcome, which approvals are open, which steps began, where the last checkpoint is.
"""

from typing import Any

from msgspec import Struct

from towline.protocol import event_data as d
from towline.protocol.values import WaitRef
from towline.workers.steps import StepBook


class OpenCommand(Struct, frozen=True):
    """An accepted command that has no outcome yet. `cancel` is none of these."""

    seq: int
    subject: str
    command_id: str
    type: str


class Ledger:
    """See the module."""

    def __init__(self) -> None:
        self.book = StepBook()
        self.status = "queued"
        self.waiting_on: list[WaitRef] = []
        self.checkpoint: int | None = None
        self.open_approvals: dict[str, None] = {}
        self.open_commands: dict[int, OpenCommand] = {}
        self.is_forced = False

    def apply(self, seq: int, type_: str, data: Any, *, actor_id: str, cause: int | None) -> None:
        """Take note of one event of the log; `data` is of its type."""
        self.book.apply(seq, type_, data)
        match type_:
            case "run.started" | "run.taken_over" | "run.resumed":
                self.status = "running"
            case "run.waiting":
                self.status, self.waiting_on = "waiting", data.on
            case "run.paused" | "run.blocked" | "run.completed" | "run.failed":
                self.status = type_.removeprefix("run.")
            case "run.cancelled":
                self.status, self.is_forced = "cancelled", data.forced
            case "checkpoint.saved":
                self.checkpoint = seq
            case "approval.requested":
                self.open_approvals[data.request] = None
            case "approval.resolved":
                self.open_approvals.pop(data.request, None)
            case "command.received":
                self.open_commands[seq] = OpenCommand(seq, actor_id, data.command_id, data.type)
            case "command.applied" | "command.rejected":
                self._end_command(data, cause)
            case _:
                pass

    def _end_command(self, data: d.CommandApplied | d.CommandRejected, cause: int | None) -> None:
        if cause is not None and self.open_commands.pop(cause, None) is not None:
            return
        for seq, command in self.open_commands.items():
            if command.command_id == data.command_id:
                del self.open_commands[seq]
                return
