"""One workflow driven by hand on a toy log: feed it, crash it, look at what it wrote. For unit tests."""

import itertools
from typing import Any

import msgspec

from tests.support.toy_log import Changed, ToyLog, Unseen
from towline.protocol import event_data as d
from towline.protocol import times
from towline.protocol.codec import Entry
from towline.protocol.events import Event
from towline.protocol.values import ErrorInfo, Vote
from towline.workers.commits import Attempt, AttemptFailed, AttemptFinished, Commit, Idle
from towline.workers.holding import Holding
from towline.workers.registry import Workflow
from towline.workers.replay import Replay


class Driven:
    """See the module. Each feeding method runs the workflow until it rests."""

    def __init__(
        self, definition: Workflow, value: Any = None, *, log: ToyLog | None = None, linger_ms: int = 0
    ) -> None:
        self.definition = definition
        self.log = log or ToyLog(workflow=definition.name, input_json=msgspec.json.encode(value))
        self.attempts: dict[str, Attempt] = {}
        self.commits: list[Commit] = []
        self._linger_ms = linger_ms
        self._names = itertools.count(1)
        self._commands = itertools.count(1)
        self._lapsed = ""
        self._is_leaving = False
        self.holding: Holding
        self.claim()

    # --- the life of the holder

    def claim(self) -> None:
        """A holder claims the run, replays it and goes on."""
        self._worker = f"w{next(self._names)}"
        self._epoch = self.log.claim()
        self._numbers = itertools.count(1)
        self.attempts.clear()
        self._read_up_to = len(self.log.entries)
        replay = self.replay(self.log.entries)
        self.holding = Holding(
            replay, worker=self._worker, now_ms=self.log.clock_ms, lapsed=self._lapsed, linger_ms=self._linger_ms
        )
        self._lapsed = ""
        self.settle()

    def replay(self, entries: list[Entry], definition: Workflow | None = None) -> Replay:
        """A finished history replay of `entries`, by another version of the code if given."""
        replay = Replay(definition or self.definition, "run-1")
        try:
            for entry in entries:
                replay.receive(entry)
            replay.finish()
        except BaseException:
            replay.machine.drop()
            raise
        return replay

    def crash(self) -> None:
        """The holder dies, another claims the run once the lease has lapsed."""
        self.holding.machine.drop()
        self._lapsed = self._worker
        self.claim()

    def settle(self) -> None:
        """Write what there is to write."""
        while self.holding.ended is None:
            action = self.holding.next(self.log.clock_ms, is_leaving=self._is_leaving)
            if isinstance(action, Idle):
                if not action.reads_inputs:
                    return
                self._read()
                continue
            self.commits.append(action)
            try:
                first_seq = self.log.commit(self._epoch, next(self._numbers), action)
            except (Unseen, Changed):
                self._numbers = itertools.count(next(self._numbers) - 1)
                self.holding.unseen()
                self._read()
                continue
            for attempt in self.holding.committed(first_seq, held=self.log.held):
                self.attempts[attempt.step] = attempt
            if self.log.held is not None:
                self._read()

    def close(self) -> None:
        self.holding.machine.drop()

    # --- what happens to it

    def say(self, step: str, text: str, message: str | None = None) -> None:
        """The running attempt of a step streams some text."""
        attempt = self.attempts[step]
        self.holding.messages.begin(step, attempt.number)
        self.holding.messages.append(step, attempt.number, text, message, "text")

    def finish(self, step: str, value: Any = None, *, summary: str = "done") -> None:
        attempt = self.attempts.pop(step)
        self.holding.receive_outcome(
            AttemptFinished(
                step=step,
                attempt=attempt.number,
                result=msgspec.json.encode(value),
                summary=summary,
                duration_ms=1,
                messages=self.holding.messages.finish(step),
            )
        )
        self._go()

    def leave_after(self, step: str, value: Any) -> None:
        """The step ends while its worker drains: the run is handed over."""
        self._is_leaving = True
        self.finish(step, value)
        self.holding.machine.drop()
        self._is_leaving = False

    def fail(self, step: str, type_: str = "ValueError", message: str = "no", *, retryable: bool = False) -> None:
        attempt = self.attempts.pop(step)
        error = ErrorInfo(type_, message, retryable)
        self.holding.receive_outcome(AttemptFailed(step=step, attempt=attempt.number, error=error))
        self._go()

    def signal(self, name: str, payload: Any = None, *, command_id: str | None = None) -> None:
        self.write_signal(name, payload, command_id=command_id)
        self._take_inputs()

    def write_signal(self, name: str, payload: Any = None, *, command_id: str | None = None) -> None:
        """A signal lands in the log; the holder has not read it yet."""
        command = d.CommandReceived(
            command_id=command_id or f"k{next(self._commands)}", type="signal", name=name, payload=payload
        )
        self.log.write_input("command.received", command)

    def resolve(self, outcome: Any = "approved") -> None:
        """The oldest open approval ends."""
        vote = Vote("user:ana", "reject" if outcome == "rejected" else "approve", times.to_wire(self.log.clock_ms))
        request = self.log.open_approvals[0]
        self.log.write_input(
            "approval.resolved", d.ApprovalResolved(request=request, outcome=outcome, decisions=[vote])
        )
        self._take_inputs()

    def cancel(self, reason: str | None = None) -> None:
        deadline = times.to_wire(self.log.clock_ms + 30_000)
        cancel = d.CancelRequested(command_id="kc", by="user:ana", deadline=deadline, reason=reason)
        self.log.write_input("cancel.requested", cancel)
        self._take_inputs()

    def pause(self, *, is_read: bool = True) -> None:
        """A pause is accepted. `is_read=False`: the holder has not heard of it yet."""
        self.log.pause()
        if is_read and self.holding.ended is None:
            self._read()
            self._go()

    def resume(self) -> None:
        """A resume is accepted; somebody claims the run if nobody holds it."""
        self.log.resume()
        self._take_inputs()

    def pass_time(self, ms: int) -> None:
        """The store's clock moves and what is due fires."""
        self.log.tick(ms)
        self.log.fire_due()
        self._take_inputs()

    # --- what it wrote

    @property
    def events(self) -> list[Event]:
        return [entry.event() for entry in self.log.entries]

    def of(self, *types: str) -> list[Any]:
        """Data of the events of these types."""
        return [event.data for event in self.events if event.type in types]

    @property
    def types(self) -> list[str]:
        return [event.type for event in self.events]

    @property
    def result(self) -> Any:
        """The result of a completed run; anything else is a failing test."""
        last = self.events[-1]
        assert last.type == "run.completed", (last.type, last.data)
        return last.data["result"]

    @property
    def error(self) -> tuple[str, str]:
        """Type and message of a failed run."""
        last = self.events[-1]
        assert last.type == "run.failed", (last.type, last.data)
        return last.data["error"]["type"], last.data["error"]["message"]

    def _take_inputs(self) -> None:
        if self.holding.ended is not None:
            if not self.log.is_sealed and self.log.paused != "1":
                self.holding.machine.drop()
                self.claim()
            return
        self._read()
        self._go()

    def _read(self) -> None:
        fresh = self.log.entries[self._read_up_to :]
        self._read_up_to = len(self.log.entries)
        self.holding.receive_inputs([entry for entry in fresh if entry.meta.is_input])

    def _go(self) -> None:
        self.log.tick()
        self.settle()
