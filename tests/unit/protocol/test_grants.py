"""Grants and shares: roles from fields, the owner that stays, tokens of links."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from towline.protocol import grants as g
from towline.protocol.errors import ProblemError


@pytest.mark.parametrize(
    ("subject", "groups", "fields", "role"),
    [
        ("ana", (), {}, "owner"),
        ("ana", (), {"g|user:ana": "viewer"}, "viewer"),
        ("ana", (), {"g|user:ana": ""}, None),
        ("ana", ("ops",), {"g|user:ana": "", "g|group:ops": "collaborator"}, "collaborator"),
        ("bob", (), {}, None),
        ("bob", (), {"g|user:bob": "viewer"}, "viewer"),
        ("bob", ("ops",), {"g|user:bob": "viewer", "g|group:ops": "owner"}, "owner"),
        ("bob", ("dev",), {"g|group:ops": "owner"}, None),
        ("user:bob", (), {"g|user:bob": "owner"}, None),
        ("ops", (), {"g|group:ops": "owner"}, None),
        ("bob", (), {"g|user:bob": "operator"}, None),
    ],
)
def test_the_highest_role_counts(
    subject: str, groups: tuple[str, ...], fields: dict[str, str], role: str | None
) -> None:
    assert g.role_of("ana", subject, groups, fields) == role


def test_who_is_named_is_named_as_a_person_or_by_a_group() -> None:
    fields = {"d|user:bob": "q1", "d|group:ops": "q2"}
    assert g.is_named("bob", (), fields)
    assert g.is_named("eve", ("ops",), fields)
    assert not g.is_named("ops", ("bob",), fields)


def test_the_starter_is_among_the_grants_until_taken_away() -> None:
    assert g.effective("ana", {}) == {"user:ana": "owner"}
    assert g.effective("ana", {"g|user:ana": "viewer", "g|group:ops": "owner"}) == {
        "user:ana": "viewer",
        "group:ops": "owner",
    }
    assert not g.is_owned(g.effective("ana", {"g|user:ana": "", "g|user:bob": "collaborator"}))


@pytest.mark.parametrize(
    "entry", ["", "bob", "user:", "role:owner", "share:x", "user:a b", "group:\n", "user:" + "x" * 257]
)
def test_what_nobody_can_be_granted_by(entry: str) -> None:
    with pytest.raises(ProblemError) as refused:
        g.check_entry(entry, field="subject")
    assert refused.value.problem.field == "subject"


def test_a_share_token_is_read_back_and_opens_its_share_alone() -> None:
    secret = g.new_secret()
    token = g.ShareToken("run-1.x", "shr_" + "A" * 26, secret)
    assert g.read_share_token(token.to_text()) == token
    share = g.Share(token.share, g.hash_of(secret), 1, 0, "user:ana")
    assert token.opens(share)
    assert not g.ShareToken("run-1.x", token.share, g.new_secret()).opens(share)
    assert not token.opens(g.Share("shr_" + "B" * 26, g.hash_of(secret), 1, 0, "user:ana"))
    assert secret not in str(share)


@given(st.text(max_size=300) | st.text("share~_ABrun1.-", max_size=120))
def test_any_text_is_a_share_token_or_none(text: str) -> None:
    token = g.read_share_token(text)
    assert token is None or token.to_text() == text
