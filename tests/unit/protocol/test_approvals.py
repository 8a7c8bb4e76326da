"""What an approval shows, and who may decide it."""

import hashlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from towline.protocol.approvals import digest_of, is_decider_entry, names_caller
from towline.protocol.values import Proposal, Question

PROPOSAL = Proposal("Delete 3 files", ["seq 4"], ["fs:write"], "Lost files", "git checkout")
QUESTIONS = [Question("q1", "Sure?")]


def test_the_digest_is_over_the_canonical_form() -> None:
    # Written out by hand: keys sorted by code point, no white space.
    canonical = (
        '{"proposal":{"blast_radius":"Lost files","intent":"Delete 3 files","lineage":["seq 4"],'
        '"permissions":["fs:write"],"rollback":"git checkout"},"questions":[{"id":"q1","text":"Sure?"}],"request":"r1"}'
    )
    expected = "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()
    assert digest_of("r1", PROPOSAL, QUESTIONS) == expected
    assert digest_of("r1", msgspec.to_builtins(PROPOSAL), [{"text": "Sure?", "id": "q1"}]) == expected


TEXTS = st.text(min_size=1, max_size=4)


@given(TEXTS, TEXTS, st.lists(TEXTS, max_size=2), st.lists(TEXTS, max_size=2))
def test_whatever_is_shown_differently_has_another_digest(a: str, b: str, one: list[str], two: list[str]) -> None:
    first = digest_of(a, msgspec.structs.replace(PROPOSAL, intent=b, lineage=one), [])
    second = digest_of(b, msgspec.structs.replace(PROPOSAL, intent=a, lineage=two), [])
    assert (first == second) == (a == b and one == two)
    assert first != digest_of(a, msgspec.structs.replace(PROPOSAL, intent=b, lineage=one), QUESTIONS)


@pytest.mark.parametrize(
    ("entry", "is_named"),
    [
        ("user:alice", True), ("user:alic", False), ("user:", False), ("role:owner", True), ("role:operator", False),
        ("group:ops", True), ("group:op", False), ("alice", False), ("owner", False), ("", False),
        ("user:alice:x", False), ("group:owner", False), ("role:alice", False),
    ],
)  # fmt: skip
def test_who_is_named(entry: str, is_named: bool) -> None:
    assert names_caller([entry], subject="alice", role="owner", groups=["ops"]) is is_named


def test_nobody_is_named_by_an_empty_list_and_a_subject_may_hold_a_colon() -> None:
    assert not names_caller([], subject="alice", role="owner", groups=[])
    assert names_caller(["user:oidc:alice"], subject="oidc:alice", role="viewer", groups=[])


@pytest.mark.parametrize(
    ("entry", "is_valid"),
    [
        ("user:alice", True), ("group:ops", True), ("role:owner", True), ("role:collaborator", True),
        ("role:operator", True), ("role:viewer", False), ("role:worker", False), ("user:", False), ("group:", False),
        ("alice", False), ("", False), ("team:x", False),
    ],
)  # fmt: skip
def test_well_formed_entries(entry: str, is_valid: bool) -> None:
    assert is_decider_entry(entry) is is_valid
