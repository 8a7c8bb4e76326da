"""How a run ends: what stayed unread is rejected, what is open is withdrawn, what began is listed, all in one step.

Promises that nothing follows the terminal entry and that an accepted command never lacks its outcome. Leaves when
a run may end to `holding`, the words to `openends`, and runs that nobody can run to the store's forced close.
"""

from towline.protocol.events import Actor
from towline.workers.commits import MOST_ENTRIES, Part
from towline.workers.decisions import Ending
from towline.workers.entries import SeqUnknown, ending_entry
from towline.workers.ledger import Ledger


def offer_close(part: Part, ending: Ending, ledger: Ledger, agent: Actor) -> None:
    """Put the ending into `part` if it fits there; else leave it to the next commit."""
    if part.opened or part.outcomes:
        return  # what this commit opens and answers is not in the ledger yet
    try:
        terminal = ending_entry(
            ending,
            agent,
            seq_of=ledger.book.finished_seq.get,
            abandoned=[step for step in ledger.abandoned() if step.step not in part.ended_steps()],
            checkpoint=ledger.checkpoint,
        )
    except SeqUnknown:
        if not part.entries:
            raise
        return  # it cites a result of this very commit
    last, outcomes, requests = ledger.open.last_entries(), ledger.open.outcomes(), list(ledger.open.requests)
    if part.entries and not part.fits([*last, terminal]):
        return
    if len(last) < MOST_ENTRIES:
        last.append(terminal)
        part.ending = "close"
    else:  # as many as fit, as a plain commit; a later one ends
        last, requests = last[:MOST_ENTRIES], requests[: max(0, MOST_ENTRIES - len(outcomes))]
        outcomes = outcomes[:MOST_ENTRIES]
    for entry in last:
        part.append(entry)
    part.outcomes.extend(outcomes)
    part.applied += sum(command.counts for command in list(ledger.open.commands.values())[: len(outcomes)])
    part.withdrawn.extend(requests)
