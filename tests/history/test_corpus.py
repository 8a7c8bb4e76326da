"""Recorded histories must replay with today's code, for ever. Files are added here, never edited.

`review-*` are runs of the shipped workflow, one of them taken over after `kill -9`; `journey-*` pass through every
kind of wait. A history whose order is changed must not replay, or this test could not fail.
"""

from pathlib import Path

import msgspec
import pytest

from tests.support import journey
from tests.support.history import load
from towline.protocol.codec import Entry
from towline.workers.agents.review import workflow as review
from towline.workers.registry import Workflow
from towline.workers.replay import Divergence, Replay

CORPUS = sorted((Path(__file__).parent / "corpus").glob("*.jsonl"))
WORKFLOWS: dict[str, Workflow] = {"journey": journey.journey, "review": review.review}


def replay(run: str, entries: list[Entry]) -> Replay:
    event = entries[0].event()
    replaying = Replay(WORKFLOWS[event.data["workflow"]], run)
    for entry in entries:
        replaying.receive(entry)
    replaying.finish()
    replaying.verify_ending()
    return replaying


def test_there_are_histories() -> None:
    assert {file.stem.partition("-")[0] for file in CORPUS} == set(WORKFLOWS)


@pytest.mark.parametrize("file", CORPUS, ids=lambda file: file.stem)
def test_a_recorded_history_replays(file: Path) -> None:
    replaying = replay(*load(file))
    try:
        assert replaying.machine.ending is not None
        assert replaying.new_decisions == []
    finally:
        replaying.drop()


@pytest.mark.parametrize("file", CORPUS, ids=lambda file: file.stem)
def test_a_history_of_other_decisions_does_not(file: Path) -> None:
    run, entries = load(file)
    changed = [
        msgspec.structs.replace(entry, meta=msgspec.structs.replace(entry.meta, key="1:0:elsewhere:1"))
        if entry.event().type == "plan.proposed"
        else entry
        for entry in entries
    ]
    with pytest.raises(Divergence):
        replay(run, changed)
