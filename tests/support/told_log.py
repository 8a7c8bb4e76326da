"""A log in a test's hands, and a shell that answers the subscription machine from it."""

import random
from collections.abc import Sequence
from typing import Any

import msgspec

from towline.protocol import subscription as s
from towline.protocol.codec import Entry, EntryMeta
from towline.protocol.cursor import Cursor


class Page(msgspec.Struct, frozen=True):
    recovery: Any
    entries: Sequence[Entry]
    head: Cursor
    first_seq: int


class Log:
    """A log as the store tells of it: the oracle of these tests."""

    def __init__(self, length: int = 0, *, first_seq: int = 1, fill: int = 0) -> None:
        self.entries: list[Entry] = []
        self.first_seq = first_seq
        self.fill = fill
        self.random = random.Random(7)
        for _ in range(length):
            self.append()

    def append(self, kind: str = "progress.noted") -> Entry:
        seq = self.entries[-1].seq + 1 if self.entries else 1
        raw = b'{"seq":%d,"type":"%s","x":"%s"}' % (seq, kind.encode(), b"x" * self.fill)
        entry = Entry(seq, self.random.randrange(1, 2**32), raw, EntryMeta())
        self.entries.append(entry)
        return entry

    def cut(self, seq: int) -> None:
        """The store is put back to an older state."""
        self.entries = self.entries[:seq]

    @property
    def head(self) -> Cursor:
        return self.entries[-1].cursor

    def read(self, after: Cursor, limit: int) -> Page:
        if after.seq > self.head.seq:
            return Page("ahead", (), self.head, self.first_seq)
        if after.seq + 1 < self.first_seq:
            return Page("trimmed", (), self.head, self.first_seq)
        if after.seq >= self.first_seq and after.tag not in (None, self.entries[after.seq - 1].tag):
            return Page("diverged", (), self.head, self.first_seq)
        return Page("ok", self.entries[after.seq : after.seq + limit], self.head, self.first_seq)


def step(machine: s.Subscription, log: Log, *, page: int = 3, status: str | None = None) -> s.Action | None:
    """One action, reads answered from `log`."""
    action = machine.next_action()
    if isinstance(action, s.Load):
        machine.receive_loaded(log.head, status)
    elif isinstance(action, s.Read):
        machine.receive_page(log.read(action.after, min(page, action.limit)))
    return action


def run(machine: s.Subscription, log: Log, *, status: str | None = None) -> list[s.Action]:
    """Everything the machine says until it rests, without its reads."""
    said: list[s.Action] = []
    for _ in range(10_000):
        if (action := step(machine, log, status=status)) is None:
            return said
        if not isinstance(action, s.Load | s.Read):
            said.append(action)
    raise AssertionError("the machine never rests")


def seqs(said: Sequence[s.Action], *, replay: bool | None = None) -> list[int]:
    return [
        entry.seq
        for action in said
        if isinstance(action, s.SendEvents) and replay in (None, action.replay)
        for entry in action.entries
    ]


def tag(log: Log, seq: int) -> str:
    return str(log.entries[seq - 1].cursor)


def told(said: Sequence[s.Action]) -> s.SendSubscribed:
    assert isinstance(said[0], s.SendSubscribed)
    return said[0]
