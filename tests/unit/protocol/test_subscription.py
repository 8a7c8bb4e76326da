"""The subscription machine: every row of the cursor table, and a whole stream whatever the order of facts."""

import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from towline.protocol import codec
from towline.protocol import subscription as s
from towline.protocol.codec import Entry, EntryMeta
from towline.protocol.cursor import Cursor
from towline.protocol.events import TERMINAL
from towline.protocol.limits import EVENTS_FRAME_BYTES


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


def test_resumed_sends_what_follows_the_cursor() -> None:
    log = Log(9)
    said = run(s.Subscription(tag(log, 4)), log)
    assert told(said) == s.SendSubscribed(s.Placement("resumed", 4), log.entries[3].cursor, 9, 1)
    assert seqs(said, replay=True) == [5, 6, 7, 8, 9]
    assert said[-1] == s.SendLive(log.head)


@pytest.mark.parametrize("after", ["0", "latest"])
def test_the_two_ends_of_a_log(after: str) -> None:
    log = Log(5)
    said = run(s.Subscription(after), log)
    at = 0 if after == "0" else 5
    assert told(said).placement == s.Placement("resumed", at)
    assert told(said).cursor == (Cursor(0) if after == "0" else log.head)
    assert seqs(said) == list(range(at + 1, 6))
    assert [a for a in said if isinstance(a, s.SendLive)] == [s.SendLive(log.head)]


def test_a_bare_seq_is_unchecked_and_answered_with_a_real_cursor() -> None:
    log = Log(6)
    said = run(s.Subscription("4"), log)
    assert told(said).placement.recovery == "resumed"
    assert told(said).cursor == log.entries[3].cursor
    assert seqs(said) == [5, 6]


@pytest.mark.parametrize("after", ["9-77", "7"])
def test_ahead_resets_to_the_beginning(after: str) -> None:
    log = Log(6)
    said = run(s.Subscription(after), log)
    assert told(said).placement == s.Placement("reset", 0, "ahead")
    assert told(said).cursor == Cursor(0)
    assert seqs(said) == [1, 2, 3, 4, 5, 6]


def test_another_history_resets() -> None:
    log = Log(6)
    said = run(s.Subscription("3-1"), log)
    assert told(said).placement == s.Placement("reset", 0, "diverged")
    assert seqs(said) == [1, 2, 3, 4, 5, 6]


def test_a_reset_stays_within_the_limit_and_names_what_it_skips() -> None:
    log = Log(6)
    said = run(s.Subscription("3-1", limit=2), log)
    assert told(said).placement == s.Placement("reset", 4, "diverged", skipped=(1, 4))
    assert told(said).cursor == log.entries[3].cursor
    assert seqs(said) == [5, 6]


def test_trimmed_names_what_is_lost() -> None:
    log = Log(9, first_seq=5)
    said = run(s.Subscription("2-5"), log)
    assert told(said).placement == s.Placement("snapshot", 4, "trimmed", lost=(3, 4))
    assert told(said).first_seq == 5
    assert seqs(said) == [5, 6, 7, 8, 9]


@pytest.mark.parametrize(("limit", "skipped"), [(1, (3, 8)), (6, (3, 3)), (7, None), (10_000, None)])
def test_limited_skips_the_oldest_and_says_which(limit: int, skipped: tuple[int, int] | None) -> None:
    log = Log(9)
    said = run(s.Subscription(tag(log, 2), limit=limit), log)
    placement = told(said).placement
    assert (placement.recovery, placement.skipped) == (("snapshot", skipped) if skipped else ("resumed", None))
    first = skipped[1] + 1 if skipped else 3
    assert told(said).cursor == log.entries[first - 2].cursor
    assert seqs(said) == list(range(first, 10))


@pytest.mark.parametrize("after", ["", "-1", "1.5", "1-2-3", "latest ", 4, None, True, {}, "9" * 40, "1-4294967296"])
def test_what_is_no_cursor_is_refused(after: object) -> None:
    machine = s.Subscription(after)
    (said,) = run(machine, Log(3))
    assert isinstance(said, s.Refuse)
    assert (said.problem.code, said.problem.field) == ("bad_request", "after")
    assert machine.is_over


def test_a_closed_run_ends_after_live() -> None:
    log = Log(3)
    log.append("run.completed")
    for after in ("0", "latest"):
        machine = s.Subscription(after)
        said = run(machine, log, status="completed")
        assert said[-2:] == [s.SendLive(log.head), s.SendEnd(log.head, "completed")]
        assert machine.is_over
        assert machine.next_action() is None


def test_a_terminal_event_seen_live_ends_it() -> None:
    log = Log(3)
    machine = s.Subscription("latest")
    run(machine, log)
    machine.receive_notice([log.append(), log.append("run.failed")])
    said = run(machine, log)
    assert seqs(said, replay=False) == [4, 5]
    assert said[-1] == s.SendEnd(log.head, "failed")


def test_what_is_appended_during_replay_comes_after_live() -> None:
    log = Log(4)
    machine = s.Subscription("0")
    step(machine, log)
    log.append()
    log.append()
    said = run(machine, log)
    assert seqs(said, replay=True) == [1, 2, 3, 4]
    assert seqs(said, replay=False) == [5, 6]
    assert [type(a) for a in said].count(s.SendLive) == 1


def test_the_projection_is_never_older_than_the_cursor() -> None:
    log = Log(4)
    machine = s.Subscription("latest")
    assert isinstance(step(machine, log), s.Load)
    log.append()
    said = run(machine, log)
    assert told(said).head == 4
    assert told(said).cursor.seq == 4
    assert seqs(said) == [5]


def test_a_head_beyond_the_position_makes_it_read() -> None:
    log = Log(2)
    machine = s.Subscription("0")
    run(machine, log)
    log.append()
    assert run(machine, log) == []
    machine.receive_head(log.head)
    assert seqs(run(machine, log)) == [3]


def test_a_head_that_is_older_than_a_notice_does_no_harm() -> None:
    log = Log(2)
    machine = s.Subscription("0")
    run(machine, log)
    before = log.head
    machine.receive_notice([log.append()])
    assert seqs(run(machine, log)) == [3]
    machine.receive_head(before)
    assert run(machine, log) == []


@pytest.mark.parametrize("cut", [1, 3])
def test_a_store_put_back_loses_the_place(cut: int) -> None:
    log = Log(5)
    machine = s.Subscription("0")
    run(machine, log)
    log.cut(cut)
    machine.receive_head(log.head)
    assert run(machine, log) == [s.LosePlace()]
    assert machine.is_over


def test_a_store_put_back_that_grew_again_loses_the_place() -> None:
    log = Log(5)
    machine = s.Subscription("0")
    run(machine, log)
    log.cut(3)
    for _ in range(4):
        log.append()
    machine.receive_head(log.head)
    assert run(machine, log) == [s.LosePlace()]


def test_a_store_put_back_during_replay_loses_the_place() -> None:
    log = Log(9)
    machine = s.Subscription("0")
    for _ in range(4):
        step(machine, log)
    log.cut(3)
    assert run(machine, log)[-1] == s.LosePlace()


def test_nothing_queues_for_a_slow_reader() -> None:
    log = Log(1, fill=1000)
    machine = s.Subscription("0")
    run(machine, log)
    for _ in range(1000):
        machine.receive_notice([log.append()])
    held = sum(len(e.raw) for e in [*machine._noticed, *machine._ready])
    assert held <= s.NOTICE_BUFFER_BYTES
    assert seqs(run(machine, log)) == list(range(2, 1002))


def test_frames_stay_short() -> None:
    log = Log(20, fill=20_000)
    said = run(s.Subscription("0"), log)
    frames = [a for a in said if isinstance(a, s.SendEvents)]
    assert all(sum(len(e.raw) + 1 for e in f.entries) <= EVENTS_FRAME_BYTES for f in frames)
    assert max(len(f.entries) for f in frames) > 1
    big = Log(3, fill=EVENTS_FRAME_BYTES)
    assert [len(a.entries) for a in run(s.Subscription("0"), big) if isinstance(a, s.SendEvents)] == [1, 1, 1]


def notify(machine: s.Subscription, entries: list[Entry], dice: random.Random) -> list[s.Action]:
    """A notice, taken in one of the ways a shell may: sent at once where it may be, kept, or only heard of."""
    last = entries[-1]
    if dice.random() < 0.7 and machine.is_next(entries[0].seq):
        kind = codec.type_of(last.raw)
        machine.sent_now(last.cursor, kind.removeprefix("run.") if kind in TERMINAL else None)
        return [s.SendEvents(entries, last.cursor, replay=False)]
    if dice.random() < 0.3:
        machine.receive_newer(last.seq)
    else:
        machine.receive_notice(entries)
    return []


def test_what_just_came_is_sent_at_once_only_where_it_follows() -> None:
    log = Log(2)
    machine = s.Subscription("0")
    assert not machine.is_next(1)  # nothing was loaded
    run(machine, log)
    new = log.append()
    assert not machine.is_next(2)
    assert not machine.is_next(4)
    assert machine.is_next(3)
    machine.sent_now(new.cursor, None)
    assert (machine.position, run(machine, log)) == (new.cursor, [])
    machine.receive_notice([log.append()])
    assert not machine.is_next(5)  # what came before it is still to be sent
    assert seqs(run(machine, log)) == [4]
    last = log.append("run.failed")
    machine.sent_now(last.cursor, "failed")
    assert run(machine, log) == [s.SendEnd(last.cursor, "failed")]
    assert not machine.is_next(6)


def test_who_takes_nothing_keeps_a_position_and_reads_the_log_later() -> None:
    log = Log(9)
    machine = s.Subscription("0")
    while not isinstance(step(machine, log), s.SendSubscribed):
        pass
    machine.receive_notice([log.append()])
    machine.set_aside()
    machine.receive_newer(log.append().seq)
    assert not machine._ready
    assert not machine._noticed
    assert seqs(run(machine, log)) == list(range(1, 12))


@pytest.mark.parametrize("seed", range(200))
def test_any_order_of_facts_gives_a_whole_stream(seed: int) -> None:
    """Appends, notices late, doubled, holed or lost, heads late, pages of any size: seq 1..N, live and end once."""
    dice = random.Random(seed)
    log = Log(dice.randrange(1, 12), fill=dice.choice([0, 0, 9_000]))
    start = dice.randrange(0, len(log.entries) + 1)
    machine = s.Subscription("0" if start == 0 else tag(log, start))
    said: list[s.Action] = []
    notices: list[list[Entry]] = []
    heads: list[Cursor] = []
    closed = False
    for _ in range(dice.randrange(20, 120)):
        move = dice.random()
        if move < 0.25 and not closed:
            closed = dice.random() < 0.1
            new = [log.append("run.completed" if closed else "progress.noted")]
            while not closed and dice.random() < 0.3:
                new.append(log.append())
            if dice.random() < 0.8:
                notices.append(new)
        elif move < 0.45 and notices:
            said += notify(machine, notices[0] if dice.random() < 0.2 else notices.pop(0), dice)
        elif move < 0.5:
            heads.append(log.head)
        elif move < 0.6 and heads:
            machine.receive_head(heads.pop(0))
        elif move < 0.63:
            machine.set_aside()
        elif action := step(machine, log, page=dice.randrange(1, 5), status="completed" if closed else None):
            said.append(action)
    if not closed:
        log.append("run.completed")
    for _ in range(3):
        machine.receive_head(log.head)
        said += run(machine, log, status="completed")
    sent = [a for a in said if not isinstance(a, s.Load | s.Read)]
    assert isinstance(sent[0], s.SendSubscribed)
    assert seqs(sent) == list(range(start + 1, len(log.entries) + 1))
    assert [type(a) for a in sent].count(s.SendLive) == 1
    live = next(i for i, a in enumerate(sent) if isinstance(a, s.SendLive))
    assert all(a.replay == (i < live) for i, a in enumerate(sent) if isinstance(a, s.SendEvents))
    assert sent[-1] == s.SendEnd(log.head, "completed")
