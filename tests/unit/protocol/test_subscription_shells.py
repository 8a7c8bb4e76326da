"""The subscription machine in the hands of a real shell: what may be sent at once, and any order of facts."""

import random

import pytest

from tests.support.told_log import Log, Page, run, seqs, step, tag
from towline.protocol import codec
from towline.protocol import subscription as s
from towline.protocol.codec import Entry
from towline.protocol.cursor import Cursor
from towline.protocol.events import TERMINAL


def notify(machine: s.Subscription, entries: list[Entry], dice: random.Random) -> list[s.Action]:
    """A notice, taken in one of the ways a shell may: sent at once where it may be, kept, or only heard of."""
    last = entries[-1]
    if dice.random() < 0.7 and machine.next_at_once() == entries[0].seq:
        kind = codec.type_of(last.raw)
        machine.sent_now(last.cursor, kind.removeprefix("run.") if kind in TERMINAL else None)
        return [s.SendEvents(entries, last.cursor, replay=False)]
    if dice.random() < 0.3:
        machine.receive_newer(last.cursor)
    else:
        machine.receive_notice(entries)
    return []


def answer(
    machine: s.Subscription, log: Log, action: s.Action, dice: random.Random, *, status: str | None
) -> list[s.Action]:
    """What was said with an action, its read answered as a shell may: by a page, or by stored frames."""
    if isinstance(action, s.Load):
        machine.receive_loaded(log.head, status)
    elif isinstance(action, s.Read):
        page = log.read(action.after, dice.randrange(1, 5))
        if dice.random() < 0.5 and page.entries:
            if machine.is_judging:
                machine.receive_page(Page("ok", (), page.head, page.first_seq))
                return []
            if machine.may_send_stored(page.entries[-1].seq):
                last = page.entries[-1]
                kind = codec.type_of(last.raw)
                machine.sent_stored(last.cursor, kind.removeprefix("run.") if kind in TERMINAL else None)
                return [s.SendEvents(page.entries, last.cursor, replay=True)]
        machine.receive_page(page)
    return [action]


def test_stored_frames_are_sent_only_behind_subscribed_and_up_to_the_head() -> None:
    log = Log(6)
    machine = s.Subscription("0")
    assert not machine.may_send_stored(2)
    step(machine, log)
    assert machine.is_judging
    assert not machine.may_send_stored(2)
    machine.next_action()
    machine.receive_page(Page("ok", (), log.head, 1))
    assert not machine.may_send_stored(2)  # the client was not told where it stands
    assert isinstance(machine.next_action(), s.SendSubscribed)
    assert isinstance(machine.next_action(), s.Read)
    assert not machine.may_send_stored(7)  # what the Run does not cover comes after `live`
    assert machine.may_send_stored(5)
    machine.sent_stored(log.entries[4].cursor, None)
    assert seqs(run(machine, log)) == [6]
    assert not machine.may_send_stored(6)


def test_what_just_came_is_sent_at_once_only_where_it_follows() -> None:
    log = Log(2)
    machine = s.Subscription("0")
    assert machine.next_at_once() == 0  # nothing was loaded
    run(machine, log)
    new = log.append()
    assert machine.next_at_once() == 3
    machine.sent_now(new.cursor, None)
    assert (machine.position, run(machine, log)) == (new.cursor, [])
    machine.receive_notice([log.append()])
    assert machine.next_at_once() == 0  # what came before it is still to be sent
    assert seqs(run(machine, log)) == [4]
    last = log.append("run.failed")
    machine.sent_now(last.cursor, "failed")
    assert run(machine, log) == [s.SendEnd(last.cursor, "failed")]
    assert machine.next_at_once() == 0


def test_who_takes_nothing_keeps_a_position_and_reads_the_log_later() -> None:
    log = Log(9)
    machine = s.Subscription("0")
    while not isinstance(step(machine, log), s.SendSubscribed):
        pass
    machine.receive_notice([log.append()])
    machine.set_aside()
    machine.receive_newer(log.append().cursor)
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
        elif action := machine.next_action():
            said += answer(machine, log, action, dice, status="completed" if closed else None)
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
