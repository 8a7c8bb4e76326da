"""The vocabulary is the contract's table: types, members, audiences, spills. Written here as the contract has it."""

from typing import Any, Final

import msgspec
import pytest
from msgspec import inspect

from towline.protocol.events import EVENTS, TERMINAL, Event, data_of

TABLE: Final = """
run.created        viewer        workflow version owner scope? grants budget headline labels? thread? behind? queue
                                 input_ref? permission_mode? retention? start_at? parent? forked_from? traceparent?
run.started        viewer        worker
run.taken_over     viewer        worker from
run.waiting        viewer        on
run.paused         viewer        code request? by? text?
run.resumed        viewer        from version? by?
run.blocked        viewer        blocker
run.continued      viewer        generation
run.completed      viewer        summary result? claims verified
run.failed         viewer        summary error checkpoint abandoned
run.cancelled      viewer        reason? by forced abandoned
plan.proposed      viewer        items why?
plan.revised       viewer        items why?
plan.step          viewer        id status note?
tool.scheduled     collaborator  step name queue
tool.started       collaborator  step name title attempt effect
tool.retrying      collaborator  step attempt error retry_at usage?
tool.finished      collaborator  step attempt summary duration_ms usage? result?
tool.failed        collaborator  step attempt error usage?
child.started      collaborator  step run
child.finished     collaborator  step run status
message.completed  collaborator  message attempt role kind text step? partial
progress.noted     viewer        text percent? topic? data?
artifact.created   collaborator  artifact name media_type size sha256 step?
checkpoint.saved   collaborator  title done next evidence automatic
approval.requested collaborator  request title expires_at? proposal digest questions deciders exclude quorum why?
input.requested    collaborator  request title expires_at? schema answerers on_expire default?
approval.voted     collaborator  request by decision comment? answers?
approval.resolved  collaborator  request outcome decisions
approval.lapsed    collaborator  request decision
input.resolved     collaborator  request outcome by? value?
command.received   collaborator  command_id type name? payload
command.applied    collaborator  command_id type effect? result?
command.rejected   collaborator  command_id type code text
cancel.requested   viewer        command_id by reason? deadline
blocker.raised     viewer        id kind title detail? since by stops remedies
blocker.cleared    viewer        id by how
budget.exceeded    collaborator  request cap limit spent reserved step?
budget.changed     collaborator  caps by
timer.started      viewer        timer due_at why
timer.fired        viewer        timer behind?
marker.recorded    operator      kind
access.changed     collaborator  subject role by
"""

FIELDS: Final = {
    "run.created": {"grants": "collaborator", "input_ref": "collaborator"},
    "run.completed": {"result": "collaborator"},
    "run.failed": {"error.message": "collaborator"},
    "tool.started": {"step": "viewer", "attempt": "viewer", "effect": "viewer"},
    "blocker.raised": {"detail": "operator"},
    "run.blocked": {"blocker.detail": "operator"},
}

WORDS: Final = {
    ("run.paused", "code"): {"user", "budget", "hold", "human_gate"},
    ("run.resumed", "from"): {"waiting", "paused", "blocked"},
    ("tool.started", "effect"): {"none", "read", "write"},
    ("message.completed", "kind"): {"text", "reasoning"},
    ("approval.resolved", "outcome"): {"approved", "rejected", "expired", "withdrawn"},
    ("input.resolved", "outcome"): {"answered", "expired", "withdrawn"},
    ("approval.voted", "decision"): {"approve", "reject"},
    ("plan.step", "status"): {"pending", "active", "done", "skipped", "failed"},
    ("child.finished", "status"): {"completed", "failed", "cancelled"},
}


def contract() -> dict[str, tuple[str, set[str]]]:
    rows = dict[str, tuple[str, set[str]]]()
    name = ""
    for line in TABLE.strip().splitlines():
        words = line.split()
        if line[0] != " ":
            name, audience, *words = words
            rows[name] = (audience, set())
        rows[name][1].update(words)
    return rows


def fields_of(type_: str) -> dict[str, inspect.Field]:
    kind = inspect.type_info(EVENTS[type_].data)
    assert isinstance(kind, inspect.StructType)
    return {f.encode_name: f for f in kind.fields}


def test_the_types_and_their_audiences() -> None:
    assert {name: row.audience for name, row in EVENTS.items()} == {n: a for n, (a, _) in contract().items()}
    assert {name: row.fields for name, row in EVENTS.items() if row.fields} == FIELDS


@pytest.mark.parametrize("type_", sorted(EVENTS))
def test_the_members_of_each_type(type_: str) -> None:
    members = {name + ("" if f.required else "?") for name, f in fields_of(type_).items()}
    assert members == contract()[type_][1]


@pytest.mark.parametrize("type_", sorted(EVENTS))
def test_what_may_be_absent_is_absent_when_it_is_none(type_: str) -> None:
    config = EVENTS[type_].data.__struct_config__
    assert config.omit_defaults
    assert config.frozen
    assert all(f.default is None for f in fields_of(type_).values() if not f.required)


@pytest.mark.parametrize(("where", "words"), WORDS.items())
def test_closed_words(where: tuple[str, str], words: set[str]) -> None:
    kind = fields_of(where[0])[where[1]].type
    assert isinstance(kind, inspect.LiteralType)
    assert set(kind.values) == words


def test_what_may_spill_is_one_of_the_named_members() -> None:
    spills = {name: row.spill for name, row in EVENTS.items() if row.spill}
    assert set(spills.values()) == {"proposal", "text", "payload", "value", "result", "detail"}
    assert all(member in fields_of(name) for name, member in spills.items())


def test_inputs_are_what_the_holder_does_not_write_itself() -> None:
    assert {name for name, row in EVENTS.items() if row.is_input} == {
        "command.received", "cancel.requested", "approval.resolved", "input.resolved", "timer.fired",
        "child.finished", "budget.changed",
    }  # fmt: skip
    assert {"run.completed", "run.failed", "run.cancelled"} == TERMINAL


def test_only_what_was_observed_is_evidence() -> None:
    evidence = {name for name, row in EVENTS.items() if row.observes}
    assert not evidence & {"message.completed", "progress.noted", "plan.proposed", "plan.revised", "plan.step"}
    assert {"tool.finished", "artifact.created"} <= evidence


def test_unknown_members_of_old_data_are_ignored() -> None:
    event = msgspec.json.decode(
        b'{"seq":1,"ts":"","type":"timer.fired","actor":{"kind":"system","id":"x"},"data":{"timer":"t","new":1}}',
        type=Event,
    )
    data: Any = data_of(event)
    assert data.timer == "t"
