"""One claimed run between the store and its machine, without I/O: what to write next, and what follows from it.

The shell (`run_shell`) feeds in what it learns (`receive_inputs`, `receive_outcome`, `committed`, `unseen`) and
asks `next(now_ms)` what to do: send a `Commit`, or `Idle` until something happens. Read `replay` first; the
rules here are those that make its order true:

1. One turn feeds the inputs that are known, in log order, then results, and is recorded before the next turn.
   No input is fed between a result and the commit that carries it: it waits for the next turn.
2. `now_ms` of a turn is taken before its first result is fed.
3. What the machine decided before (in history replay, or a turn that was cut into several commits) goes out
   before anything is fed.
4. An ending (terminal event, or letting go of a waiting run) is offered with the last entries of a turn. If it
   is `unseen`, nothing was written: the same entries go out again without it and with the same `seen`, then the
   new inputs are fed, then the ending is offered again, if it still is one.
5. All results of a turn stand in its first commit, before its decisions.
6. From an accepted pause on, no input is fed and nothing starts. What runs ends and is recorded, one result after
   the other, and the starts that the code decides meanwhile are held back. Then `run.paused` gives the lease back.
   A start that was held back is recorded before anything else is fed, by this holder or by the next.

`Commit.starts` are attempts to run once the commit is in the log, never before.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from towline.protocol import event_data as d
from towline.protocol.codec import Entry, NewEntry
from towline.protocol.events import Actor, Event
from towline.protocol.limits import SCRIPT_BYTES
from towline.protocol.store.api import Timer
from towline.protocol.values import Blocker, ErrorInfo, Usage, WaitRef
from towline.workers import attempt_entries
from towline.workers.commits import (
    Attempt,
    AttemptFailed,
    AttemptFinished,
    Commit,
    EndingKind,
    Idle,
    Item,
    Outcome,
    Part,
    items_of,
)
from towline.workers.decisions import ActivityFailed, ActivityFinished, Published, input_of
from towline.workers.ending import offer_close
from towline.workers.entries import SeqUnknown
from towline.workers.ledger import PauseAsked
from towline.workers.machine import Machine
from towline.workers.messages import Messages
from towline.workers.parking import unknown_effect
from towline.workers.replay import Replay
from towline.workers.steps import Step

TURN_RESULTS: Final = 30
TURN_BYTES: Final = SCRIPT_BYTES // 2
TURN_ARTIFACTS: Final = 50
LINGER_MS: Final = 2_000
"""A wait shorter than this is waited out with the lease held: letting go and coming back costs more."""
ENDING_PATIENCE_MS: Final = 2_000
"""How long an ended run waits for its running attempts to stop, before it lists them as abandoned."""

CANCELLED: Final = ErrorInfo("Cancelled", "The workflow gave this step up.")


class Holding:
    """See the module. Made from a finished `Replay`; `worker` names the holder in the log.

    `lapsed` is the holder whose lease ran out before ('' if none did).
    """

    def __init__(self, replay: Replay, *, worker: str, now_ms: int, lapsed: str = "", linger_ms: int = LINGER_MS):
        self.machine: Machine = replay.machine
        self.ledger = replay.ledger
        self.seen = replay.seen
        self.ended: EndingKind | None = None
        """Set once the ending is in the log: the lease is given back."""
        self.running: set[str] = set()
        """Steps whose attempt the shell runs now."""
        self.messages = Messages(self.machine.facts.run)
        """The unfinished texts of the attempts; a shell that publishes them puts its own here."""
        self._worker = Actor("worker", worker)
        self._agent = Actor("agent", f"wf:{replay.machine.definition.name}")
        self._linger_ms = linger_ms
        self._inputs: deque[Entry] = deque(replay.unfed)
        self._outcomes: deque[Outcome] = deque()
        self._now_ms = now_ms
        self._park: Blocker | None = None
        self._ended_at_ms: int | None = None
        self._must_read = False
        self._outgoing: deque[Item] = deque()
        self._held_back: deque[Item] = deque()
        self._published: dict[str, Published] = {}
        self._in_flight: tuple[Commit, int] | None = None
        self._disarm: list[Timer] = []
        self._lost: list[Step] = []
        self._part_disarms = 0
        self._begin(lapsed)
        self._outgoing.extend(Item(decision=made) for made in replay.new_decisions)
        self._published.update(self.machine.take_published())

    # --- what the shell tells

    def receive_inputs(self, entries: Iterable[Entry]) -> None:
        """Inputs that were read from the log, in order, each once. May be none."""
        for entry in entries:
            self._inputs.append(entry)
            self.ledger.note_pause(entry.event())
        self._must_read = False

    def receive_outcome(self, outcome: Outcome) -> None:
        """What became of an attempt that was started."""
        self.running.discard(outcome.step)
        self._outcomes.append(outcome)

    def committed(self, first_seq: int, *, held: int | None = None) -> Sequence[Attempt]:
        """The commit that `next` gave is in the log from `first_seq` on. Returns the attempts to run now.

        `held`: the run is paused, so only so many of its entries are. The inputs say why: read them.
        """
        assert self._in_flight is not None, "nothing is in flight"
        (commit, taken), self._in_flight = self._in_flight, None
        written = commit.entries if held is None else commit.entries[:held]
        # What the holder adds to a turn stands in front of it or at its end.
        for _ in range(taken if held is None else max(0, held - (len(commit.entries) - taken))):
            self._outgoing.popleft()
        for seq, entry in enumerate(written, first_seq):
            self.ledger.observe(Event(seq, "", entry.type, entry.actor, entry.data, cause=entry.cause))
        for name, published in commit.published.items():
            if self._published.get(name) is published:
                del self._published[name]
        if held is not None:
            self._must_read = True
            return ()
        del self._disarm[: len(commit.disarm) - self._part_disarms]
        self.ended = commit.ending
        self.running.update(attempt.step for attempt in commit.starts)
        return commit.starts

    def unseen(self) -> None:
        """The ending was refused and nothing was written: inputs stand behind `seen`."""
        assert self._in_flight is not None, "nothing is in flight"
        self._in_flight = None
        self._must_read = True

    # --- what the shell asks

    def next(self, now_ms: int, *, is_leaving: bool = False) -> Commit | Idle:
        """What to do now. `now_ms` is the store's time. Runs workflow code; may take as long as that does.

        `is_leaving`: the worker stops. What is known is written, nothing new is started, and the run is handed
        over; decisions that are not written come out of the next holder's replay again.
        """
        assert self._in_flight is None, "one commit at a time"
        self._sort_starts()
        if not self._outgoing:
            if self._must_read:
                return Idle(now_ms, reads_inputs=True)
            self._turn(now_ms)
            if not self._outgoing and self._outcomes:
                self._turn(now_ms)  # the inputs led to nothing, and an outcome had no room beside them
            self._sort_starts()
        return self._next_commit(now_ms, is_leaving=is_leaving)

    def unwanted(self) -> set[str]:
        """Running steps that the workflow gave up, or all of them once it has ended: cancel their attempts."""
        return set(self.running) if self.machine.ending is not None else self.running & self.machine.abandoned

    # --- the beginning of a holding

    def _begin(self, lapsed: str) -> None:
        if not self.ledger.is_started:
            self._put(NewEntry(type="run.started", actor=self._worker, data=d.RunStarted(worker=self._worker.id)))
        elif lapsed:
            taken = d.RunTakenOver(worker=self._worker.id, from_=lapsed)
            self._put(NewEntry(type="run.taken_over", actor=self._worker, data=taken))
        self._lost = list(self.ledger.book.started())

    def _resume_lost(self) -> None:
        """Nobody runs these attempts any more: their holder is gone. Try again what is still wanted."""
        lost, self._lost = self._lost, []
        machine, book = self.machine, self.ledger.book
        if machine.ending is not None:
            return
        wanted = [step for step in lost if step.step not in machine.abandoned]
        for step in lost:
            if step not in wanted:
                self._outcomes.append(AttemptFailed(step=step.step, attempt=step.attempt, error=CANCELLED))
        for step in wanted:
            if book.is_effect_unknown(step.step, machine.activities[step.step].activity.retry):
                self._park = unknown_effect(step, self._worker.id, self._now_ms)
                return
        for step in wanted:
            self._put_attempt(Attempt(machine.activities[step.step], step.attempt + 1))

    # --- a turn

    def _turn(self, now_ms: int) -> None:
        """Feed what is known and gather what is to be recorded of it."""
        machine = self.machine
        if self._park is not None:
            return
        is_pausing = self.ledger.pause is not None
        is_fresh = is_pausing or not self._inputs
        while self._inputs and not is_pausing:
            self._feed_input(self._inputs.popleft(), now_ms)
        self._now_ms = now_ms
        if not is_pausing:
            self._resume_lost()
        room, room_bytes = TURN_RESULTS, TURN_BYTES
        while self._outcomes and room > 0 and room_bytes > 0:
            outcome = self._outcomes[0]
            if isinstance(outcome, AttemptFinished):
                if (outcome.announced > TURN_ARTIFACTS or outcome.size_bytes > room_bytes) and not is_fresh:
                    break  # its announcements fill a commit of their own, so it has a turn of its own
                room -= outcome.announced
                room_bytes -= outcome.size_bytes
            self._outcomes.popleft()
            self._take_outcome(outcome)
            room, is_fresh = room - 1, False
        self._end_retry_waits(now_ms)
        self._outgoing.extend(Item(decision=made) for made in machine.take_decisions())
        self._published.update(machine.take_published())
        self._complete_the_rest(now_ms)
        self._disarm += [Timer("timer", step) for step in machine.disarmed]
        machine.disarmed.clear()

    def _end_retry_waits(self, now_ms: int) -> None:
        """Start the attempts that are due; end the steps that the workflow gave up meanwhile."""
        if self.machine.ending is not None:
            return
        for step in list(self.ledger.book.retry_waits()):
            timer = Timer("retry", step.retry_timer)
            if step.step in self.machine.abandoned:
                self._fail(step.step, step.attempt, CANCELLED, None, disarm=timer)
            elif step.retry_at_ms <= now_ms and self.ledger.pause is None:
                self._put_attempt(Attempt(self.machine.activities[step.step], step.attempt + 1), disarm=timer)

    def _feed_input(self, entry: Entry, now_ms: int) -> None:
        self.ledger.observe_input(entry.event())
        fact = input_of(entry)
        self.machine.feed(fact, self._time_of(fact.at_ms, now_ms))
        self.seen = entry.cursor

    def _time_of(self, at_ms: int, now_ms: int) -> int:
        """The machine's time while an input of `at_ms` is fed."""
        return at_ms

    def _take_outcome(self, outcome: Outcome) -> None:
        if isinstance(outcome, AttemptFinished):
            self._finish(outcome)
            return
        start = self.machine.activities[outcome.step]
        retry_at_ms = self.ledger.book.retry_at_ms(
            outcome.step, start.activity.retry, retryable=outcome.error.retryable, now_ms=self._now_ms
        )
        is_wanted = self.machine.ending is None and outcome.step not in self.machine.abandoned
        if retry_at_ms is None or not is_wanted:
            self._fail(outcome.step, outcome.attempt, outcome.error, outcome.usage)
            return
        timer = Timer("retry", f"{outcome.step}:retry:{outcome.attempt}", retry_at_ms)
        self._put(attempt_entries.retrying(outcome, retry_at_ms, self._agent), arm=timer)

    def _finish(self, outcome: AttemptFinished) -> None:
        for made in outcome.artifacts:
            announced = NewEntry(type="artifact.created", actor=self._agent, data=made.data)
            self._outgoing.append(Item(entry=announced, artifact=made))
        self._outgoing.extend(items_of(outcome.messages, self._agent))
        self._put(attempt_entries.finished(outcome, self._agent), recorded=True)
        self.machine.feed(ActivityFinished(step=outcome.step, result=outcome.result), self._now_ms)

    def _fail(
        self, step: str, attempt: int, error: ErrorInfo, usage: Usage | None, *, disarm: Timer | None = None
    ) -> None:
        self._outgoing.extend(items_of(self.messages.abandon(step), self._agent))
        entry = attempt_entries.failed(step, attempt, error, usage, self._agent)
        self._put(entry, disarm=disarm, recorded=True)
        self.machine.feed(ActivityFailed(step=step, error=error), self._now_ms)

    def _complete_the_rest(self, now_ms: int) -> None:
        """Before the run ends: the texts of steps that have no result and will get none."""
        if self.machine.ending is not None and not self._outcomes and not self._is_patient(now_ms):
            self._outgoing.extend(items_of(self.messages.close(), self._agent))

    def _put(
        self, entry: NewEntry, *, arm: Timer | None = None, disarm: Timer | None = None, recorded: bool = False
    ) -> None:
        self._outgoing.append(Item(entry=entry, arm=arm, disarm=disarm, recorded=recorded))

    def _put_attempt(self, attempt: Attempt, *, disarm: Timer | None = None) -> None:
        entry = attempt_entries.started(attempt, self._agent)
        self._outgoing.append(Item(entry=entry, start=attempt, disarm=disarm))

    # --- the next commit

    def _sort_starts(self) -> None:
        """Hold starts back while the run is to pause; let them go first once it is not."""
        if self.ledger.pause is None:
            self._outgoing.extendleft(reversed(self._held_back))
            self._held_back.clear()
            return
        self._held_back.extend(item for item in self._outgoing if item.starts_something)
        self._outgoing = deque(item for item in self._outgoing if not item.starts_something)

    def _next_commit(self, now_ms: int, *, is_leaving: bool) -> Commit | Idle:
        part = Part()
        taken = 0
        is_cut = False
        for item in self._outgoing:
            if is_leaving and item.starts_something:
                break
            try:
                is_cut = not part.add(item, self._agent, self.ledger.book.finished_seq.get)
            except SeqUnknown:
                if not part.entries:
                    raise
                is_cut = True
            if is_cut:
                break
            taken += 1
        if taken == len(self._outgoing) and not (self._must_read or self._outcomes):
            if self.ledger.pause is not None and self._park is None:
                self._offer_pause(part, self.ledger.pause)
            elif not (self._inputs or self._lost):
                self._offer_ending(part, now_ms)
        if is_leaving and part.ending is None and not (is_cut or self._outcomes):
            part.ending = "hand_over"
        if not part.entries and part.ending is None and not self._published:
            return Idle(None if self.ledger.pause is not None else self._wake_at_ms())
        before = part.before_starts
        if self.ledger.status == "waiting" and part.entries and part.entries[0].type != "run.paused":
            resumed = NewEntry(type="run.resumed", actor=self._worker, data=d.RunResumed(from_="waiting"))
            part.entries.insert(0, resumed)
            before = None if before is None else replace(before, entries=before.entries + 1)
        self._part_disarms = len(part.disarm)
        commit = part.commit(
            seen=self.seen,
            now_ms=self._now_ms,
            disarm=self._disarm,
            before_starts=before,
            published=dict(self._published),
        )
        self._in_flight = (commit, taken)
        return commit

    def _offer_pause(self, part: Part, pause: PauseAsked) -> None:
        """Come to rest once nothing runs any more."""
        if self.running:
            return
        data = d.RunPaused(code="user", by=pause.by, text=pause.reason)
        part.append(NewEntry(type="run.paused", actor=self._worker, data=data, cause=pause.seq))
        part.ending = "paused"

    def _offer_ending(self, part: Part, now_ms: int) -> None:
        if self._park is not None:
            part.append(NewEntry(type="run.blocked", actor=self._worker, data=d.RunBlocked(blocker=self._park)))
            part.ending = "blocked"
        elif self.machine.ending is None:
            self._offer_waiting(part, now_ms)
        elif self._is_patient(now_ms):
            return
        else:
            offer_close(part, self.machine.ending, self.ledger, self._agent)

    def _offer_waiting(self, part: Part, now_ms: int) -> None:
        """Let go of the run if nothing goes on without somebody else, and not very soon."""
        is_retrying = any(timer.kind == "retry" for timer in part.arm)
        if self.running or part.starts or is_retrying:
            return
        wake_at_ms = self._wake_at_ms()
        if wake_at_ms is not None and wake_at_ms <= now_ms + self._linger_ms:
            return
        on = self.machine.waits()
        on += [WaitRef(step.retry_timer, "timer", "retry") for step in self.ledger.book.retry_waits()]
        part.ending = "waiting"
        if part.entries or self.ledger.status != "waiting" or on != self.ledger.waiting_on:
            part.append(NewEntry(type="run.waiting", actor=self._worker, data=d.RunWaiting(on=on)))

    def _is_patient(self, now_ms: int) -> bool:
        """Whether the end still waits for what runs to stop."""
        if self.running and self._ended_at_ms is None:
            self._ended_at_ms = now_ms
        return bool(self.running) and now_ms < (self._ended_at_ms or 0) + ENDING_PATIENCE_MS

    def _wake_at_ms(self) -> int | None:
        """When something is due that the holder must look at by itself."""
        due = [step.retry_at_ms for step in self.ledger.book.retry_waits()] if self.machine.ending is None else []
        due += [timer.due_ms for timer in self.machine.timers.values()]
        if self._ended_at_ms is not None:
            due.append(self._ended_at_ms + ENDING_PATIENCE_MS)
        return min(due, default=None)
