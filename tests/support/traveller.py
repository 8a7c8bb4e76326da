"""Takes one run of `journey` through to its end as a person would, and checks what must hold at the end.

Promises that it answers what the run asks (the signal, the approval) whenever it is asked, through whatever is
killed meanwhile, and that `check` fails on a gap, a repeat, a second terminal event or a step recorded twice.
"""

from collections import Counter
from pathlib import Path
from typing import Any

from msgspec import Struct

from tests.support.journey import STEPS
from towline.protocol.client.connect import Client
from towline.protocol.client.views import SeenEvent

TERMINAL = ("run.completed", "run.failed", "run.cancelled")


class Travelled(Struct):
    """One watcher's events, in the order they came, and the run they are of."""

    run: str
    events: list[SeenEvent]


async def travel(client: Client, ledger: Path, *, on_event: Any = None, **options: Any) -> Travelled:
    """Starts a journey, watches it to its end, and answers it. `on_event` is awaited with each event.

    `options`: further members of the start.
    """
    started = await client.start("journey", {"ledger": str(ledger)}, **options)
    seen = Travelled(started.id, [])
    async for event in client.events(started.id):
        seen.events.append(event)
        if on_event is not None:
            await on_event(event)
        if event.type == "plan.proposed":
            await client.signal(started.id, "go", "went")
        if event.type == "approval.requested":
            await client.approve(started.id, event.data["request"], event.data["digest"])
    return seen


def check(seen: Travelled, ledger: Path) -> None:
    """The promises, on one watcher's list and on the world outside."""
    events = seen.events
    assert [event.seq for event in events] == list(range(1, len(events) + 1)), "a gap or a repeat"
    assert [event.type for event in events if event.type in TERMINAL] == ["run.completed"]
    assert events[-1].type == "run.completed"
    assert events[-1].data["result"]["words"] == ["prepare", "left", "right", "flaky", "went", "approved", "conclude"]
    assert events[-1].data["verified"] is True
    finished = Counter(event.data["step"] for event in events if event.type == "tool.finished")
    assert len(finished) == len(STEPS)
    assert set(finished.values()) == {1}, "a step was recorded twice"
    outcomes = Counter(event.data["command_id"] for event in events if event.type in ("command.applied",))
    assert len(outcomes) == 2
    assert set(outcomes.values()) == {1}, "a command was applied twice"
    asked = [event for event in events if event.type == "approval.requested"]
    assert len(asked) == 1, "asked twice"
    lines = [line.split(" ") for line in ledger.read_text().splitlines()]
    keys: dict[str, set[str]] = {}
    for name, key in lines:
        keys.setdefault(name, set()).add(key)
    assert set(keys) == set(STEPS)
    assert all(len(same) == 1 for same in keys.values()), "an idempotency key changed over attempts"
