"""The subscription machine: every row of the cursor table, and a whole stream."""

import pytest

from tests.support.told_log import Log, run, seqs, step, tag, told
from towline.protocol import subscription as s
from towline.protocol.cursor import Cursor
from towline.protocol.limits import EVENTS_FRAME_BYTES
from towline.protocol.placing import Placement


def test_resumed_sends_what_follows_the_cursor() -> None:
    log = Log(9)
    said = run(s.Subscription(tag(log, 4)), log)
    assert told(said) == s.SendSubscribed(Placement("resumed", 4), log.entries[3].cursor, 9, 1)
    assert seqs(said, replay=True) == [5, 6, 7, 8, 9]
    assert said[-1] == s.SendLive(log.head)


@pytest.mark.parametrize("after", ["0", "latest"])
def test_the_two_ends_of_a_log(after: str) -> None:
    log = Log(5)
    said = run(s.Subscription(after), log)
    at = 0 if after == "0" else 5
    assert told(said).placement == Placement("resumed", at)
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
    assert told(said).placement == Placement("reset", 0, "ahead")
    assert told(said).cursor == Cursor(0)
    assert seqs(said) == [1, 2, 3, 4, 5, 6]


def test_another_history_resets() -> None:
    log = Log(6)
    said = run(s.Subscription("3-1"), log)
    assert told(said).placement == Placement("reset", 0, "diverged")
    assert seqs(said) == [1, 2, 3, 4, 5, 6]


def test_a_reset_stays_within_the_limit_and_names_what_it_skips() -> None:
    log = Log(6)
    said = run(s.Subscription("3-1", limit=2), log)
    assert told(said).placement == Placement("reset", 4, "diverged", skipped=(1, 4))
    assert told(said).cursor == log.entries[3].cursor
    assert seqs(said) == [5, 6]


def test_trimmed_names_what_is_lost() -> None:
    log = Log(9, first_seq=5)
    said = run(s.Subscription("2-5"), log)
    assert told(said).placement == Placement("snapshot", 4, "trimmed", lost=(3, 4))
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


@pytest.mark.parametrize("way", ["in one", "one by one", "while it lags"])
@pytest.mark.parametrize("grown", [2, 3, 4])
def test_entries_of_another_history_are_never_joined_to_what_was_sent(grown: int, way: str) -> None:
    """Put back to 3 and written on: of 4', 5', 6' … none may follow the old 5, however they are heard of."""
    log = Log(5)
    machine = s.Subscription("0")
    run(machine, log)
    log.cut(3)
    others = [log.append() for _ in range(grown)]
    for entries in [others] if way == "in one" else [[entry] for entry in others]:
        if way == "while it lags" and entries[-1].seq <= 5:
            machine.receive_newer(entries[-1].cursor)
        else:
            machine.receive_notice(entries)
    assert machine.next_at_once() == 0
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
