"""When a claim is proven: what it cites was seen to happen in this run."""

import pytest

from towline.protocol.events import EVENTS, Actor, Event
from towline.protocol.evidence import Observed
from towline.protocol.values import Claim, Evidence


def observed() -> Observed:
    made = Observed()
    for seq, type_ in enumerate(EVENTS, 1):
        made.observe(Event(seq, "", type_, Actor("agent", "wf:x"), {}))
    made.note_artifact("report")
    return made


def seq_of(type_: str) -> int:
    return list(EVENTS).index(type_) + 1


@pytest.mark.parametrize("type_", EVENTS)
def test_only_what_was_observed_proves(type_: str) -> None:
    proves = {"tool.finished", "artifact.created", "input.resolved", "approval.resolved", "child.finished"}
    claim = Claim("so", [Evidence(seq=seq_of(type_))])
    assert observed().are_proven([claim]) is (type_ in proves)


def test_every_claim_and_all_it_cites() -> None:
    good = Claim("so", [Evidence(artifact="report"), Evidence(seq=seq_of("tool.finished"))])
    assert observed().are_proven([good]) is True
    assert observed().are_proven([good, Claim("so", [])]) is False
    assert observed().are_proven([good, Claim("so", [*good.evidence, Evidence(artifact="none")])]) is False
    assert observed().are_proven([Claim("so", [Evidence(seq=9_999)])]) is False
    assert observed().are_proven([]) is None
