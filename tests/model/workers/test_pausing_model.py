"""Random workflows under a second writer that also pauses and resumes, and crashes: every log replays, none starts."""

import os

import pytest

from tests.model.workers.test_machine_model import Watched, assert_same_decisions, assert_same_ending
from tests.model.workers.toy import play, read_all
from tests.support.toy_log import dump
from towline.protocol.codec import Entry
from towline.workers.replay import Divergence

GAMES = 2_000 if os.environ.get("TOWLINE_SOAK") else 200


def starts_while_pausing(entries: list[Entry]) -> list[int]:
    """Seqs of steps that began between an accepted pause and its end."""
    is_pausing, found = False, []
    for entry in entries:
        event = entry.event()
        match event.type, event.data:
            case "command.received", {"type": "pause"}:
                is_pausing = True
            case ("command.received", {"type": "resume"}) | ("cancel.requested", _):
                is_pausing = False
            case "tool.started", _ if is_pausing:
                found.append(event.seq)
            case _:
                pass
    return found


@pytest.mark.parametrize("part", range(4))
def test_paused_games_replay_and_start_nothing(part: int) -> None:
    rested = cut = 0
    for seed in range(part * GAMES // 4, (part + 1) * GAMES // 4):
        try:
            played = play(seed, pauses=True)
            replay = read_all(played, played.log.entries, Watched, seed)
            assert isinstance(replay, Watched)
            assert_same_decisions(replay, played.log.entries)
            assert_same_ending(replay, played.log.entries)
        except Divergence as divergence:
            raise AssertionError(f"seed {seed}: {divergence}") from divergence
        assert starts_while_pausing(played.log.entries) == [], f"seed {seed}\n{dump(played.log.entries)}"
        events = [entry.event() for entry in played.log.entries]
        rested += any(event.type == "run.paused" for event in events)
        cut += any(event.type == "run.paused" and event.actor.kind == "worker" for event in events)
    assert rested > GAMES // 8
    assert cut > GAMES // 40


class Strict(Watched):
    """Knows nothing of starts that a pause held back."""

    def _end_turn(self, *, is_last: bool) -> None:
        self._was_pausing = False
        super()._end_turn(is_last=is_last)


def test_the_game_would_notice_a_replay_that_forgets_what_was_held_back() -> None:
    found = 0
    for seed in range(100):
        try:
            played = play(seed, pauses=True, make_replay=Strict)
            read_all(played, played.log.entries, Strict, seed)
        except Divergence:
            found += 1
    assert found > 0
