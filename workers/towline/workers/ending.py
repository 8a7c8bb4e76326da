"""How a run ends: what stayed unread is rejected, what is open is withdrawn, what began is listed, all in one step.

Promises that nothing follows the terminal entry and that an accepted command never lacks its outcome. Leaves when
a run may end to `holding`, and runs that nobody can run to the forced close of the store.
"""

from typing import Final

from towline.protocol import event_data as d
from towline.protocol.codec import NewEntry
from towline.protocol.events import Actor
from towline.workers.commits import MOST_ENTRIES, Part
from towline.workers.decisions import Ending
from towline.workers.entries import SeqUnknown, ending_entry
from towline.workers.ledger import Ledger, OpenCommand

UNCONSUMED: Final = "unconsumed"
_UNCONSUMED_TEXT: Final = "The run ended before it read this."


def offer_close(part: Part, ending: Ending, ledger: Ledger, *, agent: Actor, worker: Actor) -> None:
    """Put the ending into `part` if it fits there; else leave it to the next commit."""
    try:
        terminal = ending_entry(
            ending,
            agent,
            seq_of=ledger.book.finished_seq.get,
            abandoned=ledger.book.abandoned(),
            checkpoint=ledger.checkpoint,
        )
    except SeqUnknown:
        if not part.entries:
            raise
        return  # it cites a result of this very commit
    commands = [command for seq, command in ledger.open_commands.items() if seq not in part.ended_commands]
    approvals = list(ledger.open_approvals)
    rejections = [_rejection(command, worker) for command in commands]
    withdrawals = [_withdrawal(request, worker) for request in approvals]
    closing = [*rejections, *withdrawals, terminal]
    if part.entries and not part.fits(closing):
        return
    if len(closing) > MOST_ENTRIES:  # as many as fit, as a plain commit; the next one ends
        most = MOST_ENTRIES // 2
        commands, approvals = commands[:most], approvals[:most]
        closing = [*rejections[:most], *withdrawals[:most]]
    else:
        part.ending = "close"
    for entry in closing:
        part.append(entry)
    for command in commands:
        part.end_command(command, status="rejected", code=UNCONSUMED, text=_UNCONSUMED_TEXT)
    part.withdrawn.extend(approvals)


def _rejection(command: OpenCommand, actor: Actor) -> NewEntry:
    data = d.CommandRejected(command_id=command.command_id, type=command.type, code=UNCONSUMED, text=_UNCONSUMED_TEXT)
    return NewEntry(type="command.rejected", actor=actor, data=data, cause=command.seq)


def _withdrawal(request: str, actor: Actor) -> NewEntry:
    data = d.ApprovalResolved(request=request, outcome="withdrawn", decisions=[])
    return NewEntry(type="approval.resolved", actor=actor, data=data)
