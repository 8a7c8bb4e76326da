"""Commands: anything a client sends is one of the twelve, or a problem that names the field."""

from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.logs import JSON
from towline.protocol import commands as c
from towline.protocol.errors import Problem, ProblemError

VALID: dict[str, dict[str, Any]] = {
    "approve": {"request": "r", "digest": "sha256:0"},
    "reject": {"request": "r", "digest": "sha256:0", "comment": "no"},
    "respond": {"request": "r", "value": None},
    "pause": {},
    "resume": {"reason": "go"},
    "revise": {"instruction": "shorter", "when": "interrupt"},
    "add_context": {"text": "x"},
    "cancel": {"grace_ms": 0},
    "signal": {"name": "go"},
    "update": {"name": "go", "payload": [1]},
    "set_budget": {"caps": {"tokens": 5}},
    "retry": {},
}
MEMBERS = st.sampled_from(sorted({m for data in VALID.values() for m in data}))


def refused(type_: object, data: object, command_id: object = "c1") -> Problem:
    with pytest.raises(ProblemError) as caught:
        c.decode(type_, data, command_id)
    assert caught.value.problem.code == "bad_request"
    return caught.value.problem


def test_the_list_and_who_may_send_what() -> None:
    assert set(c.COMMANDS) == set(VALID)
    assert {n: t.role for n, t in c.COMMANDS.items()} == {
        "approve": "decider", "reject": "decider", "respond": "decider", "pause": "collaborator",
        "resume": "collaborator", "revise": "collaborator", "add_context": "collaborator", "cancel": "owner",
        "signal": "collaborator", "update": "collaborator", "set_budget": "owner", "retry": "operator",
    }  # fmt: skip
    assert {n for n, t in c.COMMANDS.items() if t.counts} == {"revise", "add_context", "signal", "update"}
    assert {n for n, t in c.COMMANDS.items() if t.applied_on_acceptance} == {
        "approve", "reject", "respond", "set_budget", "retry", "pause", "resume"
    }  # fmt: skip


@pytest.mark.parametrize("type_", sorted(VALID))
def test_each_is_decoded_and_ignores_what_it_does_not_know(type_: str) -> None:
    plain = c.decode(type_, VALID[type_], "c1")
    assert isinstance(plain.data, c.COMMANDS[type_].data)
    assert c.decode(type_, {**VALID[type_], "new": 1}, "c1").data == plain.data


@given(
    st.sampled_from(sorted(VALID)) | JSON,
    st.dictionaries(MEMBERS | st.text(max_size=3), JSON | st.floats() | st.text(max_size=3)) | JSON,
    st.text(max_size=4) | JSON,
)
@example("signal", {"name": "go", "payload": "\ud800"}, "c1")
def test_anything_is_a_command_or_a_bad_request(type_: Any, data: Any, command_id: Any) -> None:
    try:
        command = c.decode(type_, data, command_id)
    except ProblemError as error:
        refusal = error.problem
    else:
        assert command.type == type_
        assert msgspec.json.decode(command.body)[0] == type_
        return
    assert refusal.code == "bad_request"
    assert refusal.field


def test_what_is_nested_too_deep_is_refused() -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    assert refused("signal", {"name": "go", "payload": deep}).field == "data"


@pytest.mark.parametrize(
    ("type_", "data", "field"),
    [
        ("approve", {}, "data.request"),
        ("approve", {"request": "r"}, "data.digest"),
        ("approve", {"request": 5, "digest": "d"}, "data.request"),
        ("cancel", {"grace_ms": -1}, "data.grace_ms"),
        ("cancel", {"grace_ms": 600_001}, "data.grace_ms"),
        ("cancel", {"grace_ms": "5"}, "data.grace_ms"),
        ("cancel", {"reason": "x" * 1001}, "data.reason"),
        ("cancel", [], "data"),
        ("signal", {"name": "a b"}, "data.name"),
        ("revise", {"instruction": "x", "when": "soon"}, "data.when"),
        ("add_context", {}, "data.text"),
        ("add_context", {"text": "x", "ref": "y"}, "data.text"),
    ],
)
def test_the_field_is_named(type_: str, data: Any, field: str) -> None:
    assert refused(type_, data).field == field


def test_an_unknown_type_is_told_the_types() -> None:
    assert refused("explode", {}).known == sorted(VALID)
    assert refused(None, {}).field == "type"


@pytest.mark.parametrize("command_id", [None, 5, "", "a b", "x" * 129, "a\n", "ü"])
def test_a_command_needs_an_id(command_id: object) -> None:
    assert refused("cancel", {}, command_id).field == "command_id"


def test_the_fingerprint_stands_for_type_and_data_alone() -> None:
    base = c.decode("signal", {"name": "go", "payload": {"a": 1, "b": 2}}, "c1").fingerprint
    assert c.decode("signal", {"payload": {"b": 2, "a": 1}, "name": "go"}, "c2").fingerprint == base
    assert c.decode("update", {"name": "go", "payload": {"a": 1, "b": 2}}, "c1").fingerprint != base
    assert c.decode("signal", {"name": "go"}, "c1").fingerprint != c.decode(
        "signal", {"name": "go", "payload": None}, "c1"
    ).fingerprint  # fmt: skip
    assert c.decode("cancel", None, "c1").fingerprint == c.decode("cancel", {}, "c1").fingerprint


def test_a_receipt_always_says_whether_it_is_a_duplicate() -> None:
    wire = msgspec.to_builtins(c.receipt("c1", "cancel", "accepted", seq=4, applies="now"))
    assert wire == {
        "command_id": "c1", "type": "cancel", "status": "accepted", "duplicate": False, "seq": 4, "applies": "now"
    }  # fmt: skip
    refusal = msgspec.to_builtins(c.refusal("c1", "cancel", Problem("held", "x"), "req_1"))
    assert (refusal["status"], refusal["problem"]["status"], refusal["problem"]["request_id"]) == (
        "refused", 409, "req_1",
    )  # fmt: skip
