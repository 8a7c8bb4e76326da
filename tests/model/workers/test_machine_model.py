"""The toy: random workflows under a second writer and crashes. Every log replays; without the rules, not.

300 seeded programs run to their end; between every two calls of the log another writer appends an input. Every
log must replay from scratch, to the same decisions and the same ending. The same game must show divergences once
one of the three rules that make that true is taken away, so that we know it would notice.
"""

import os
from collections.abc import Callable
from typing import Any

import msgspec

from tests.model.workers.toy import Played, play, read_all
from tests.support.toy_log import dump
from towline.protocol.codec import Entry
from towline.protocol.events import Actor
from towline.workers.decisions import Complete, Fail, Input, MachineDecision
from towline.workers.entries import entry_of
from towline.workers.holding import Holding
from towline.workers.registry import Workflow
from towline.workers.replay import Divergence, Replay

GAMES = 3_000 if os.environ.get("TOWLINE_SOAK") else 300


class Watched(Replay):
    """Keeps everything the machine decided."""

    def __init__(self, definition: Workflow, run: str) -> None:
        super().__init__(definition, run)
        self.decided: list[MachineDecision] = []

    def _end_turn(self, *, is_last: bool) -> None:
        take = self.machine.take_decisions

        def taking() -> list[MachineDecision]:
            taken = take()
            self.decided += taken
            return taken

        self.machine.take_decisions = taking  # type: ignore[method-assign]
        try:
            super()._end_turn(is_last=is_last)
        finally:
            self.machine.take_decisions = take  # type: ignore[method-assign]


def assert_same_decisions(replay: Watched, entries: list[Entry]) -> None:
    """Not only the same steps in their places: the same data, to the byte of meaning."""
    recorded = {entry.meta.key: entry.event() for entry in reversed(entries) if entry.meta.key is not None}
    finished = replay.ledger.book.finished_seq
    for decision in replay.decided:
        made = entry_of(decision, Actor("agent", "wf:toy"), finished.get)
        event = recorded.get(decision.step)
        assert event is not None, f"{decision.step} is not in the log"
        assert msgspec.to_builtins(made.data) == event.data, decision.step
        assert made.cause == event.cause, decision.step


def assert_same_ending(replay: Replay, entries: list[Entry]) -> None:
    last = entries[-1].event()
    ending = replay.machine.ending
    if isinstance(ending, Complete):
        assert msgspec.json.decode(ending.result) == last.data["result"]
    elif isinstance(ending, Fail):
        assert ending.error.message == last.data["error"]["message"]


def diverging(games: int, make_replay: Callable[[Workflow, str], Replay] = Watched, **rules: Any) -> tuple[int, int]:
    """How many games out of how many show a divergence, on the way or at the end."""
    found = 0
    for seed in range(games):
        played: Played | None = None
        try:
            played = play(seed, make_replay=make_replay, **rules)
            replay = read_all(played, played.log.entries, make_replay, seed)
            if isinstance(replay, Watched):
                assert_same_decisions(replay, played.log.entries)
            assert_same_ending(replay, played.log.entries)
        except (Divergence, AssertionError):
            found += 1
    return found, games


def test_every_log_replays_to_the_same_decisions() -> None:
    seen_statuses: set[str] = set()
    crashes = replays = unseen = results = 0
    for seed in range(GAMES):
        played = play(seed)
        try:
            replay = read_all(played, played.log.entries, Watched, seed)
            assert isinstance(replay, Watched)
            assert_same_decisions(replay, played.log.entries)
            assert_same_ending(replay, played.log.entries)
        except (Divergence, AssertionError) as error:
            raise AssertionError(f"seed {seed}: {error}\n{dump(played.log.entries)}") from error
        seen_statuses.add(replay.ledger.status)
        crashes += played.crashes
        replays += played.replays
        unseen += played.log.unseen_count
        results += played.results
    # Not vacuous: the games had trouble of every kind.
    assert seen_statuses == {"completed", "failed", "cancelled"}
    assert min(crashes, replays, unseen, results) > GAMES, (crashes, replays, unseen, results)


def test_each_step_is_recorded_once_and_each_signal_answered_once() -> None:
    for seed in range(100):
        events = [entry.event() for entry in play(seed, crash=0.15).log.entries]
        ends = [event.data["step"] for event in events if event.type in ("tool.finished", "tool.failed")]
        assert len(ends) == len(set(ends)), seed
        asked = [event.seq for event in events if event.type == "command.received"]
        answered = [event.cause for event in events if event.type in ("command.applied", "command.rejected")]
        assert sorted(answered, key=lambda seq: seq or 0) == asked, seed
        requested = [event.data["request"] for event in events if event.type == "approval.requested"]
        resolved = [event.data["request"] for event in events if event.type == "approval.resolved"]
        assert sorted(requested) == sorted(resolved), seed


class FeedsByPlace(Watched):
    """Replay without `seen`: inputs are fed where they stand in the log."""

    def _inputs_seen_by(self, seen: str | None, first_seq: int) -> list[Entry]:
        return super()._inputs_seen_by(f"{first_seq - 1}-1" if first_seq > 1 else None, first_seq)


class FeedsBeforeTheCommit(Holding):
    """Answers UNSEEN by feeding the new inputs first, and only then writes what it had decided."""

    def receive_inputs(self, entries: Any) -> None:
        super().receive_inputs(entries)
        while self._outgoing and self._inputs:
            self._feed_input(self._inputs.popleft(), self._now_ms)


class OneTimePerCommit(Watched):
    """All that a commit saw is fed at the commit's time, not each input at its own."""

    def _time_of(self, fact: Input, now_ms: int) -> int:
        return now_ms


def test_it_would_notice_if_seen_were_not_recorded() -> None:
    found, games = diverging(60, FeedsByPlace, records_seen=False)
    assert found > games // 10


def test_it_would_notice_if_unseen_were_answered_by_feeding_before_the_commit() -> None:
    found, games = diverging(60, make_holding=FeedsBeforeTheCommit)
    assert found > games // 10


def test_it_would_notice_if_a_commit_had_one_time_for_all_it_feeds() -> None:
    found, games = diverging(60, OneTimePerCommit)
    assert found > games // 10
