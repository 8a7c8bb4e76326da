"""Pausing a run and letting it go on: what the accepting step writes, from what was read of the run.

A pause has two states beside none. *Asked*: a worker holds the run, its running steps end and are recorded, and then
it writes `run.paused` and gives the lease back. *At rest* ('1'): nobody holds it, and nobody may but for a cancel.
A run that nobody holds when the pause is accepted is at rest at once.

    read                 pause                            resume
    no pause, not held   run.paused, '1'                  nothing but the receipt
    no pause, held       asked                            nothing but the receipt
    asked                nothing but the receipt          taken back
    at rest              nothing but the receipt          run.resumed, taken back, a worker is called

Both are inputs, so a holder learns of them by every way it learns of inputs, and none goes to sleep over one. Leaves
the script's checks to `accept_command.lua` and a holder's part to the workers.
"""

from typing import Literal

from msgspec import Struct

from towline.protocol import event_data as d
from towline.protocol.codec import NewEntry
from towline.protocol.events import Actor
from towline.protocol.store import api
from towline.protocol.store.openends import SYSTEM


class Steered(Struct, frozen=True):
    """What a pause, a resume or a cancel does to the pause of a run."""

    entries: tuple[NewEntry, ...] = ()
    effect: str = ""
    paused: Literal["", "-", "asked", "1"] = ""
    was_held: bool | None = None


def pause(loaded: api.Loaded, subject: str, reason: str | None) -> Steered:
    """What a pause does now. Its entries follow the `command.received`, which caused them."""
    facts = loaded.facts
    if facts.paused:
        return Steered(effect="The run is paused already." if facts.paused == "1" else "The run pauses already.")
    if facts.lease_until_ms or facts.blocked:
        return Steered(effect="The run pauses when its running steps have ended.", paused="asked")
    data = d.RunPaused(code="user", by=f"user:{subject}", text=reason)
    entry = NewEntry("run.paused", Actor("user", subject), data, cause_index=0)
    return Steered((entry,), "The run is paused.", paused="1", was_held=False)


def resume(loaded: api.Loaded, subject: str) -> Steered:
    """What a resume does now."""
    if not loaded.facts.paused:
        return Steered(effect="The run was not paused.")
    if loaded.facts.paused == "asked":
        return Steered(effect="The pause is taken back.", paused="-")
    return Steered((_resumed(subject),), "The run goes on.", paused="-")


def give_way(loaded: api.Loaded, subject: str) -> Steered:
    """What a cancel does to a pause: the run goes on, so that its clean-up runs; unless it will be closed at once."""
    facts = loaded.facts
    if facts.paused != "1" or facts.epoch == 0:
        return Steered(paused="-" if facts.paused else "")
    return Steered((_resumed(subject),), paused="-")


def _resumed(subject: str) -> NewEntry:
    data = d.RunResumed(from_="paused", by=f"user:{subject}")
    return NewEntry("run.resumed", SYSTEM, data, cause_index=0)
