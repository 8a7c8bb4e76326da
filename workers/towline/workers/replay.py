"""History replay: a machine brought to where the log stands, and checked against it on the way.

The log is read commit by commit (entries with one epoch and commit number are one). A commit tells in which
order its holder fed the machine: first the inputs up to its `seen` that were not fed yet, in log order, each at
its own time; then the results that the commit itself carries, in their order, at its `now_ms`. The machine is
run to rest after each.

What the machine then decided must be what the log records, matched by step id, before the next feed: a holder
never feeds on while a decision of its is unrecorded, and may record one turn's decisions in several commits. So

    recorded and not decided     the code no longer asks for it                    `Divergence`
    decided and not recorded     the code asks for something new in its own past   `Divergence`
    decided at the end of the log and not recorded                                 new: `new_decisions`
    a start, decided while the run was to pause    recorded once it goes on        the turn it is recorded in

Entries of the step book (`tool.finished`, later attempts, …) and of the holder (`run.started`, …) are not the
machine's and are only noted in the `ledger`. Leaves what comes after the log to `holding`.
"""

from collections import deque
from collections.abc import Iterable

import msgspec

from towline.protocol import cursor, times
from towline.protocol.codec import Entry
from towline.protocol.cursor import START, Cursor
from towline.protocol.events import TERMINAL, Event
from towline.workers.context import body
from towline.workers.decisions import (
    Cancel,
    Complete,
    Fail,
    Input,
    MachineDecision,
    Result,
    StartActivity,
    input_of,
    result_of,
)
from towline.workers.entries import type_of
from towline.workers.ledger import Ledger
from towline.workers.machine import Machine, RunFacts
from towline.workers.registry import Workflow

_BOOKKEEPING = frozenset({"tool.finished", "tool.failed", "tool.retrying", "message.completed"})


class Divergence(Exception):
    """The code does not do what the log says it did. The run parks; nothing is overwritten.

    `expected` is what the log records at `step`, `actual` what the code decided instead.
    """

    def __init__(self, step: str, expected: str, actual: str) -> None:
        super().__init__(f"at step {step}: the log has {expected}, the code decided {actual}")
        self.step = step
        self.expected = expected
        self.actual = actual


class BadHistory(Exception):
    """The log is not one that a worker can read: it does not begin with `run.created`, or is not dense."""


class Replay:
    """See the module. `receive` takes the entries in order, with their private parts; then `finish` once."""

    def __init__(self, definition: Workflow, run: str) -> None:
        self.ledger = Ledger()
        self.seen: Cursor = START
        """The newest input that was fed; `run.created` counts as fed from the start."""
        self.new_decisions: list[MachineDecision] = []
        self._definition = definition
        self._run = run
        self._machine: Machine | None = None
        self._head = 0
        self._unfed: deque[Entry] = deque()
        self._commit: list[tuple[Entry, Event]] = []
        # The turn being gathered: what is fed, and what the log records of it.
        self._is_started = False
        self._has_commits = False
        self._inputs: list[Entry] = []
        self._results: list[Result] = []
        self._now_ms = 0
        self._recorded: dict[str, str] = {}
        # Starts that a pause held back: decided, and recorded in a later turn.
        self._held_back: dict[str, MachineDecision] = {}
        self._was_pausing = False

    @property
    def machine(self) -> Machine:
        """The machine, once `run.created` was received."""
        if self._machine is None:
            raise BadHistory(f"the log of {self._run} has no run.created")
        return self._machine

    @property
    def unfed(self) -> list[Entry]:
        """Inputs that no commit has seen yet, in log order."""
        return list(self._unfed)

    @property
    def head(self) -> int:
        """Seq of the newest entry received."""
        return self._head

    def receive(self, entry: Entry) -> None:
        """Take the next entry. Raises `Divergence`, `BadHistory`."""
        if entry.seq != self._head + 1:
            raise BadHistory(f"the log of {self._run} goes from {self._head} to {entry.seq}")
        self._head = entry.seq
        event = entry.event()
        if entry.seq == 1:
            self._begin(entry, event)
        self.ledger.observe(event)
        self._was_pausing |= self.ledger.pause is not None
        meta = entry.meta
        if self._commit:
            begun = self._commit[0][0].meta
            if meta.commit != begun.commit or meta.epoch != begun.epoch:
                self._end_commit()
        if meta.is_input:
            self._unfed.append(entry)
        elif meta.commit is not None:
            self._commit.append((entry, event))

    def receive_all(self, entries: Iterable[Entry]) -> None:
        """Take the next entries. Raises as `receive`."""
        for entry in entries:
            self.receive(entry)

    def drop(self) -> None:
        """Let the code go, if there is any yet."""
        if self._machine is not None:
            self._machine.drop()

    def finish(self) -> None:
        """End of the log: what was decided and is not recorded is new. Raises `Divergence`."""
        self._end_commit()
        self._end_turn(is_last=True)
        self.machine.replaying = False

    def verify_ending(self) -> None:
        """After `finish` on a sealed log: the code must have ended as the log says. Raises `Divergence`.

        A forced cancel ends a run wherever its code stands.
        """
        ending, status = self.machine.ending, self.ledger.status
        if f"run.{status}" not in TERMINAL or self.ledger.is_forced:
            return
        expected = {"completed": Complete, "failed": Fail, "cancelled": Cancel}[status]
        if self.new_decisions:
            extra = self.new_decisions[0]
            raise Divergence(extra.step, "nothing", f"{type_of(extra)} {extra.step}")
        if not isinstance(ending, expected):
            raise Divergence("ending", f"run.{status}", "no ending" if ending is None else type(ending).__name__)

    # --- inside

    def _begin(self, entry: Entry, event: Event) -> None:
        if event.type != "run.created":
            raise BadHistory(f"the log of {self._run} begins with {event.type}")
        hidden: dict[str, msgspec.Raw] = (
            msgspec.json.decode(entry.private, type=dict[str, msgspec.Raw]) if entry.private else {}
        )
        given = hidden.get("input")
        facts = RunFacts(
            run=self._run,
            owner=event.data["owner"],
            created_ms=times.from_wire(event.ts),
            input=None if given is None else bytes(given),
        )
        self.seen = entry.cursor
        self._machine = Machine(self._definition, facts, body)
        self._machine.replaying = True

    def _end_commit(self) -> None:
        """Take a whole commit: if it carries feeds, the turn before it is over."""
        commit, self._commit = self._commit, []
        if not commit:
            return
        self._has_commits = True
        first, _ = commit[0]
        meta = first.meta
        inputs = self._inputs_seen_by(meta.seen, first.seq)
        results = [result for entry, event in commit if (result := result_of(entry, event)) is not None]
        if inputs or results:
            self._end_turn(is_last=False)
            self._inputs, self._results, self._now_ms = inputs, results, meta.now_ms or 0
        for entry, event in commit:
            self._note_recorded(entry, event)

    def _inputs_seen_by(self, seen: str | None, first_seq: int) -> list[Entry]:
        if not self._unfed:
            return []
        up_to = 0 if seen is None else cursor.parse(seen).seq
        inputs: list[Entry] = []
        while self._unfed and self._unfed[0].seq <= up_to:
            inputs.append(self._unfed.popleft())
        return inputs

    def _note_recorded(self, entry: Entry, event: Event) -> None:
        step = entry.meta.key
        if step is None or event.type in _BOOKKEEPING or event.type.startswith("run."):
            return
        if event.type == "tool.started" and event.data["attempt"] > 1:
            return
        if event.type == "marker.recorded" and entry.private:
            hidden = msgspec.json.decode(entry.private, type=dict[str, msgspec.Raw])
            self.machine.markers[step] = bytes(hidden["value"])
        self._recorded[step] = event.type

    def _end_turn(self, *, is_last: bool) -> None:
        """Feed what was gathered and compare what comes out with what is recorded."""
        machine = self.machine
        if not self._is_started:
            self._is_started = True
            machine.replaying = self._has_commits
            machine.start()
            machine.replaying = True
        for entry in self._inputs:
            fact = input_of(entry)
            machine.feed(fact, self._time_of(fact, self._now_ms))
            self.seen = entry.cursor
        for result in self._results:
            machine.feed(result, self._now_ms)
        self._inputs, self._results = [], []
        decided = self._held_back | {decision.step: decision for decision in machine.take_decisions()}
        recorded, self._recorded = self._recorded, {}
        missing = [step for step, type_ in recorded.items() if not _is_same(decided.get(step), type_)]
        extra = [made for step, made in decided.items() if recorded.get(step) != type_of(made)]
        self._held_back = {}
        if self._was_pausing and not is_last:
            self._held_back = {made.step: made for made in extra if isinstance(made, StartActivity)}
            extra = [made for made in extra if made.step not in self._held_back]
        self._was_pausing = self.ledger.pause is not None
        if missing or (extra and not is_last):
            step = missing[0] if missing else extra[0].step
            raise Divergence(
                step,
                f"{recorded[missing[0]]} {missing[0]}" if missing else "nothing",
                f"{type_of(extra[0])} {extra[0].step}" if extra else "nothing",
            )
        machine.disarmed.clear()
        self.new_decisions = extra

    def _time_of(self, fact: Input, now_ms: int) -> int:
        """The machine's time while `fact` is fed. `now_ms` is its commit's, and is for results only."""
        return fact.at_ms


def _is_same(decision: MachineDecision | None, type_: str) -> bool:
    return decision is not None and type_of(decision) == type_
