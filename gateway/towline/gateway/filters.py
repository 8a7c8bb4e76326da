"""Which runs a list or a feed is about: the filters of `GET /runs`, read from wherever they were sent.

Promises that a word which is none of the known is refused by name. Leaves access to `access`.
"""

from collections.abc import Callable
from typing import get_args

from msgspec import Struct

from towline.protocol.errors import problem
from towline.protocol.ids import is_subject
from towline.protocol.run_state import Run
from towline.protocol.values import Status, WaitKind

NAMES = ("status", "owner", "workflow", "thread", "label", "parent", "waiting_on")


class Filter(Struct, frozen=True):
    """What a run must be."""

    statuses: frozenset[str] | None = None
    owner: str | None = None
    workflow: str | None = None
    thread: str | None = None
    label: tuple[str, str] | None = None
    parent: str | None = None
    waiting_on: str | None = None

    def takes(self, run: Run) -> bool:
        """Whether `run` is one of them."""
        return (
            (self.statuses is None or run.status in self.statuses)
            and self.owner in (None, run.owner)
            and self.workflow in (None, run.workflow)
            and self.thread in (None, run.thread)
            and (self.label is None or (run.labels or {}).get(self.label[0]) == self.label[1])
            and (self.parent is None or (run.parent is not None and run.parent.run == self.parent))
            and (self.waiting_on is None or any(wait.kind == self.waiting_on for wait in run.waiting_on))
        )


def read_filter(get: Callable[[str], str | None]) -> Filter:
    """The filter whose members `get` gives by name. Raises `bad_request`."""
    owner = get("owner")
    if owner is not None and not is_subject(owner):
        raise problem("bad_request", "No subject is named so.", field="owner")
    statuses = None
    if (text := get("status")) is not None:
        statuses = frozenset(_word("status", part, get_args(Status)) for part in text.split(","))
    label = None
    if (text := get("label")) is not None:
        name, colon, value = text.partition(":")
        if not colon:
            raise problem("bad_request", "A label is written as name:value.", field="label", expected="name:value")
        label = (name, value)
    waiting_on = get("waiting_on")
    if waiting_on is not None:
        _word("waiting_on", waiting_on, get_args(WaitKind))
    return Filter(statuses, owner, get("workflow"), get("thread"), label, get("parent"), waiting_on)


def _word(field: str, word: str, known: tuple[str, ...]) -> str:
    if word not in known:
        raise problem("bad_request", f"{field} has no such value.", field=field, known=list(known))
    return word
