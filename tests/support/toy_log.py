"""A run's log in memory, as small as the rules allow: the oracle of the worker's model tests.

Knows fences, commit numbers, `seen`, UNSEEN on endings, timers and a clock that moves with every call. Nothing
is refused or written that the real scripts would not refuse or write; no code is shared with them.
"""

import itertools
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from towline.protocol import event_data as d
from towline.protocol import times
from towline.protocol.codec import Entry, EntryMeta, NewEntry, decode_entry, encode_envelope, encode_meta
from towline.protocol.events import TERMINAL, Actor
from towline.workers.commits import Commit

START_MS = 1_700_000_000_000
SYSTEM = Actor("system", "store")
PERSON = Actor("user", "ana")


class Unseen(Exception):
    pass


class Fenced(Exception):
    pass


class Changed(Exception):
    pass


class ToyLog:
    """See the module. `records_seen=False` is the store of the mutation that forgets it."""

    def __init__(self, *, workflow: str, input_json: bytes = b"null", records_seen: bool = True) -> None:
        self.entries: list[Entry] = []
        self.clock_ms = START_MS
        self.input_seq = 1
        self.timers: dict[str, int] = {}
        self.status = "queued"
        self.is_sealed = False
        self.paused = ""
        self.held: int | None = None
        """How many entries the newest commit was cut to, if it was held."""
        self.unseen_count = 0
        self.open_approvals: list[str] = []
        self._epoch = 0
        self._holder: int | None = None
        self._number = 0
        self._records_seen = records_seen
        created = d.RunCreated(
            workflow=workflow, version="1", owner="ana", queue="default", headline="toy", grants={}, budget=None
        )
        entry = NewEntry(type="run.created", actor=PERSON, data=created, private=b'{"input":' + input_json + b"}")
        self._append(entry, EntryMeta())

    def tick(self, ms: int = 1) -> int:
        self.clock_ms += ms
        return self.clock_ms

    def claim(self) -> int:
        assert not self.is_sealed
        self._epoch += 1
        self._holder, self._number = self._epoch, 0
        return self._epoch

    def read(self, after: int) -> list[Entry]:
        return self.entries[after:]

    def write_input(self, type_: str, data: Any, actor: Actor = PERSON) -> None:
        """What the gateway or a sweep appends."""
        if self.is_sealed:
            return
        self.tick()
        entry = self._append(NewEntry(type=type_, actor=actor, data=data), EntryMeta(is_input=True))
        self.input_seq = entry.seq
        if type_ == "approval.resolved":
            self.open_approvals.remove(data.request)

    def pause(self, reason: str | None = None) -> None:
        """What accepting a pause writes: with a holder the question, without one the rest as well."""
        if self.is_sealed:
            return
        is_held = self._holder is not None
        received = d.CommandReceived(command_id="kp", type="pause", payload={"reason": reason} if reason else {})
        self.write_input("command.received", received)
        self.paused = self.paused or ("asked" if is_held else "1")
        if not is_held and self.status != "paused":
            self.status = "paused"
            self._append(
                NewEntry(type="run.paused", actor=PERSON, data=d.RunPaused(code="user", by="user:ana")), EntryMeta()
            )
        self._applied("pause")

    def resume(self) -> None:
        """What accepting a resume writes."""
        if self.is_sealed:
            return
        self.write_input("command.received", d.CommandReceived(command_id="kr", type="resume", payload={}))
        if self.paused == "1":
            self.status = "running"
            resumed = d.RunResumed(from_="paused", by="user:ana")
            self._append(NewEntry(type="run.resumed", actor=SYSTEM, data=resumed), EntryMeta())
        self.paused = ""
        self._applied("resume")

    def _applied(self, type_: str) -> None:
        applied = d.CommandApplied(command_id=f"k{type_[0]}", type=type_, effect="")
        self._append(NewEntry(type="command.applied", actor=SYSTEM, data=applied), EntryMeta())

    def fire_due(self) -> None:
        for timer, due_ms in sorted(self.timers.items(), key=lambda item: item[1]):
            if due_ms <= self.clock_ms:
                del self.timers[timer]
                self.write_input("timer.fired", d.TimerFired(timer=timer), SYSTEM)

    def commit(self, epoch: int, number: int, commit: Commit) -> int:
        """Writes a commit and gives the seq of its first entry. Raises `Fenced`, `Unseen`, `Changed`."""
        self.tick()
        if self._holder != epoch or self.is_sealed:
            raise Fenced
        assert number == self._number + 1
        assert self.entries[commit.seen.seq - 1].cursor == commit.seen, "seen is not in the log"
        if commit.ending in ("waiting", "close") and self.input_seq > commit.seen.seq:
            self.unseen_count += 1
            raise Unseen
        if commit.ending == "paused" and not self.paused:
            raise Changed
        self._number = number
        self.held = None
        if self.paused and commit.before_starts is not None:
            self.held = commit.before_starts.entries
            commit = replace(
                commit,
                entries=commit.entries[: self.held],
                arm=commit.arm[: commit.before_starts.arm],
                disarm=commit.disarm[: commit.before_starts.disarm],
            )
        first_seq = len(self.entries) + 1
        seen = str(commit.seen) if self._records_seen else None
        for entry in commit.entries:
            assert not self.is_sealed, "an entry after the terminal one"
            self._append(entry, EntryMeta(epoch=epoch, commit=number, seen=seen, now_ms=commit.now_ms, key=entry.key))
            self.is_sealed = entry.type in TERMINAL
            if entry.type == "approval.requested":
                self.open_approvals.append(entry.data.request)
            elif entry.type == "approval.resolved":
                self.open_approvals.remove(entry.data.request)
        for timer in commit.disarm:
            self.timers.pop(timer.id, None)
        self.timers.update({timer.id: timer.due_ms for timer in commit.arm})
        assert self.is_sealed == (commit.ending == "close")
        if commit.ending is not None:
            self._holder = None
            self.status = commit.ending
            if commit.ending == "paused":
                self.paused = "1"
        return first_seq

    def _append(self, entry: NewEntry, meta: EntryMeta) -> Entry:
        seq = len(self.entries) + 1
        head = b'{"seq":%d,"ts":"%s",' % (seq, times.to_wire(self.clock_ms).encode())
        if entry.cause is not None:
            head += b'"cause":%d,' % entry.cause
        made = decode_entry(f"{seq}-{seq * 7919}", head + encode_envelope(entry), encode_meta(meta), entry.private)
        self.entries.append(made)
        return made


class HistoryMaker:
    """Builds a toy log by driving a holding by hand, for unit tests."""

    def __init__(self, log: ToyLog) -> None:
        self.log = log
        self.numbers = itertools.count(1)
        self.epoch = log.claim()

    def send(self, commit: Commit) -> int:
        return self.log.commit(self.epoch, next(self.numbers), commit)


def dump(entries: Sequence[Entry]) -> str:
    """One line per entry, for a failing test."""
    lines = []
    for entry in entries:
        event, meta = entry.event(), entry.meta
        lines.append(
            f"{entry.seq:4} {event.type:20} key={meta.key} epoch={meta.epoch} commit={meta.commit} seen={meta.seen} "
            f"now={meta.now_ms} input={meta.is_input} {event.data}"
        )
    return "\n".join(lines)
