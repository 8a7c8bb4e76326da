"""The whole rule of an approval: who, repeats, when it is resolved, in the order of the contract's refusals."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from towline.protocol import event_data as d
from towline.protocol import requests
from towline.protocol.errors import Problem, ProblemError
from towline.protocol.projection import Caller
from towline.protocol.values import Proposal, Question, Vote

PROPOSAL = Proposal("Do it", [], [], "None", "Undo it")
T0, T1 = "2026-01-31T09:30:00.000Z", "2026-01-31T09:31:00.000Z"
OWNER = Caller("olga", "owner")


def asked(**members: Any) -> requests.ApprovalState:
    data = d.ApprovalRequested(
        request="r1", title="Do it?", proposal=PROPOSAL, digest="sha256:1", questions=[], deciders=["role:owner"],
        exclude=[], quorum=1,
    )  # fmt: skip
    return replace(requests.opened(data), **members)


def decide(state: requests.ApprovalState, caller: Caller = OWNER, decision: Any = "approve", **more: Any) -> Any:
    given: dict[str, Any] = {"digest": "sha256:1", "answers": None, "at": T0, "by": f"user:{caller.subject}", **more}
    return requests.decide(state, caller, decision, **given)


def refusal(state: requests.ApprovalState, caller: Caller = OWNER, decision: Any = "approve", **more: Any) -> Problem:
    with pytest.raises(ProblemError) as caught:
        decide(state, caller, decision, **more)
    return caught.value.problem


@pytest.mark.parametrize(("decision", "outcome"), [("approve", "approved"), ("reject", "rejected")])
def test_one_decision_resolves(decision: Any, outcome: str) -> None:
    after, is_resolved = decide(asked(), decision=decision)
    assert is_resolved
    assert (after.outcome, after.version, after.decisions) == (outcome, 2, [Vote("user:olga", decision, T0)])


def test_a_quorum_needs_different_people_and_one_reject_ends_it() -> None:
    state = asked(quorum=2, deciders=["user:a", "user:b", "user:c"])
    one, is_resolved = decide(state, Caller("a", "viewer"))
    assert not is_resolved
    assert one.outcome is None
    with pytest.raises(requests.AlreadySo):
        decide(one, Caller("a", "viewer"))
    assert refusal(one, Caller("a", "viewer"), "reject").code == "already_decided"
    two, is_resolved = decide(one, Caller("b", "viewer"))
    assert is_resolved
    assert two.outcome == "approved"
    ended, is_resolved = decide(one, Caller("c", "viewer"), "reject")
    assert is_resolved
    assert ended.outcome == "rejected"


def test_the_loser_is_told_who_decided_what() -> None:
    after, _ = decide(asked(deciders=["user:a", "user:b"]), Caller("a", "viewer"))
    problem = refusal(after, Caller("b", "viewer"), "reject")
    assert problem.code == "already_decided"
    assert problem.request["outcome"] == "approved"
    assert [vote["by"] for vote in problem.request["decisions"]] == ["user:a"]


def test_a_repeat_of_the_same_person_is_a_duplicate_also_after_the_end() -> None:
    after, _ = decide(asked())
    with pytest.raises(requests.AlreadySo):
        decide(after)


@pytest.mark.parametrize(
    "caller",
    [
        Caller("olga", "owner", decides=False),
        Caller("w", "worker"),
        Caller("s", "share"),
        Caller("v", "viewer"),
        Caller("c", "collaborator"),
        Caller("o", "operator"),
    ],
)
def test_others_may_not_decide(caller: Caller) -> None:
    assert refusal(asked(), caller).code == "forbidden"


def test_four_eyes() -> None:
    state = asked(deciders=["role:owner", "group:ops"], exclude=["role:owner"])
    assert refusal(state).code == "forbidden"
    _, is_resolved = decide(state, Caller("p", "viewer", ["ops"]))
    assert is_resolved


def test_an_operator_who_owns_the_run_decides_as_its_owner_and_is_excluded_as_its_owner() -> None:
    both = Caller("olga", "operator", owns=True)
    _, is_resolved = decide(asked(), both)
    assert is_resolved
    four_eyes = asked(deciders=["role:operator"], exclude=["role:owner"])
    assert refusal(four_eyes, both).code == "forbidden"
    _, is_resolved = decide(four_eyes, Caller("otto", "operator"))
    assert is_resolved


def test_the_order_of_refusals() -> None:
    questions = [Question("q1", "Sure?")]
    late = asked(expires_at=T0, questions=questions)
    wrong: dict[str, Any] = {"digest": "sha256:2", "at": T1}
    assert refusal(replace(late, outcome="rejected"), Caller("v", "viewer"), **wrong).code == "forbidden"
    assert refusal(replace(late, outcome="rejected"), **wrong).code == "already_decided"
    assert refusal(replace(late, outcome="expired"), **wrong).code == "expired"
    assert refusal(late, **wrong).code == "expired"
    assert refusal(replace(late, expires_at=None), **wrong).code == "digest_mismatch"
    assert refusal(replace(late, expires_at=None), at=T1).expected == ["q1"]
    assert refusal(replace(late, expires_at=None), at=T1, answers={"q1": ""}).field == "data.answers"


def test_an_answer_to_each_question_approves_and_a_reject_needs_none() -> None:
    state = asked(questions=[Question("q1", "Sure?")], expires_at=T1)
    assert decide(state, answers={"q1": "yes"})[0].outcome == "approved"
    assert decide(state, decision="reject")[0].outcome == "rejected"


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["approve", "reject"])), max_size=8), st.integers(1, 3)
)
def test_any_order_of_votes_has_one_outcome_that_never_changes(votes: list[tuple[str, Any]], quorum: int) -> None:
    state, final = asked(quorum=quorum, deciders=["user:a", "user:b", "user:c"]), None
    for subject, decision in votes:
        before = state
        try:
            state, is_resolved = decide(state, Caller(subject, "viewer"), decision)
        except (ProblemError, requests.AlreadySo):
            assert state == before
            continue
        assert final is None, "a decision after the outcome"
        assert state.version == before.version + 1
        final = state.outcome if is_resolved else None
    assert state.outcome == final
    approvals = {v.by for v in state.decisions if v.decision == "approve"}
    assert (state.outcome == "approved") == (len(approvals) == quorum and all(
        v.decision == "approve" for v in state.decisions))  # fmt: skip
    assert requests.decode(requests.encode(state)) == state


def test_what_the_store_keeps_and_what_a_client_reads() -> None:
    state = asked()
    assert requests.side_fields(state) == {"q|r1": requests.encode(state), "v|r1": "1"}
    assert requests.withdrawals([state])["v|r1"] == "2"
    wire = requests.to_wire(state, OWNER, seq=None, since=T0)
    assert wire["may_answer"] is True
    assert wire["request"]["proposal"] == msgspec.to_builtins(PROPOSAL)
    ended = requests.to_wire(requests.withdrawn(state), OWNER, seq=9, since=T0)
    assert (ended["may_answer"], ended["outcome"], ended["seq"]) == (False, "withdrawn", 9)
