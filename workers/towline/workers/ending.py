"""How a run ends: what stayed unread is rejected, what is open is withdrawn, what began is listed, all in one step.

Promises that nothing follows the terminal entry and that an accepted command never lacks its outcome. Leaves when
a run may end to `holding`, the words to `store.openends`, and runs that nobody can run to the store's forced close.
"""

from towline.protocol.events import Actor
from towline.protocol.store.api import Timer
from towline.workers.commits import MOST_ENTRIES, Part
from towline.workers.decisions import Ending
from towline.workers.entries import SeqUnknown, ending_entry
from towline.workers.ledger import Ledger


def offer_close(part: Part, ending: Ending, ledger: Ledger, agent: Actor) -> None:
    """Put the ending into `part` if it fits there; else leave it to the next commit."""
    if part.opened or part.outcomes or part.artifacts:
        return  # what this commit opens, answers and announces is not in the ledger yet
    try:
        terminal = ending_entry(
            ending,
            agent,
            seq_of=ledger.book.finished_seq.get,
            abandoned=[step for step in ledger.abandoned() if step.step not in part.ended_steps()],
            checkpoint=ledger.checkpoint,
            are_proven=ledger.are_proven,
        )
    except SeqUnknown:
        if not part.entries:
            raise
        return  # it cites a result of this very commit
    ends = ledger.open
    is_whole = len(ends.commands) + len(ends.requests) < MOST_ENTRIES
    if not is_whole:  # as many as fit, as a plain commit; a later one ends
        ends = ends.first(MOST_ENTRIES // 2)
    closing = [*ends.last_entries(), terminal] if is_whole else ends.last_entries()
    if part.entries and not part.fits(closing):
        return
    for entry in closing:
        part.append(entry)
    part.outcomes.extend(ends.outcomes())
    part.applied += sum(command.counts for command in ends.commands.values())
    part.withdrawn.extend(ends.requests)
    if is_whole:
        part.ending = "close"
        part.disarm.extend(ends.timers.values())
        part.disarm.extend(Timer("retry", step.retry_timer) for step in ledger.book.retry_waits())
