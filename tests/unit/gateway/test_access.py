"""Access: who a credential is on a run, for every role, verb and glob."""

from typing import Literal

import pytest

from towline.gateway.access import caller_of, fields_for, require, require_role
from towline.protocol.errors import ProblemError
from towline.protocol.projection import Caller, Role
from towline.protocol.tokens import Credential


def credential(subject: str = "ana", *roles: str, **more: object) -> Credential:
    return Credential(subject, 0, roles or ("user",), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("who", "role", "decides"),
    [
        (credential("ana"), "owner", True),
        (credential("bob"), None, None),
        (credential("root", "operator"), "operator", True),
        (credential("ana", "user", "operator"), "operator", True),
        (credential("ana", "worker"), "owner", False),
        (credential("root", "operator", "worker"), "operator", False),
        (credential("w", "worker"), None, None),
        (credential("ana", verbs=["read"]), "owner", True),
        (credential("ana", verbs=["command"]), None, None),
        (credential("ana", verbs=[]), None, None),
        (credential("ana", runs=["run_1"]), "owner", False),
        (credential("ana", runs=["run_*"]), "owner", False),
        (credential("ana", runs=["run_2", "RUN_1", "un_1"]), None, None),
        (credential("ana", runs=[]), None, None),
        (credential("root", "operator", runs=["other"]), None, None),
    ],
)
def test_who_a_credential_is_on_a_run(who: Credential, role: str | None, decides: bool | None) -> None:
    caller = caller_of(who, "run_1", "ana")
    assert (caller and caller.role, caller and caller.decides) == (role, decides)


SHARE = credential("share:shr_1", share="shr_1", runs=["run_1"], verbs=["read"])


@pytest.mark.parametrize(
    ("who", "fields", "role", "decides"),
    [
        (credential("bob"), {"g|user:bob": "viewer"}, "viewer", True),
        (credential("bob", groups=["ops"]), {"g|group:ops": "collaborator"}, "collaborator", True),
        (credential("bob", "worker"), {"g|user:bob": "owner"}, "owner", False),
        (credential("bob", groups=["ops"]), {"d|group:ops": "q1"}, "viewer", True),
        (credential("bob"), {"d|user:bob": "q1", "g|user:bob": "collaborator"}, "collaborator", True),
        (credential("ana"), {"g|user:ana": ""}, None, None),
        (credential("ana"), {"g|user:ana": "", "d|user:ana": "q1"}, "viewer", True),
        (credential("bob", runs=["run_2"]), {"g|user:bob": "owner"}, None, None),
        (credential("bob", verbs=["command"]), {"g|user:bob": "owner"}, None, None),
        (SHARE, {"s|shr_1": "{}"}, "share", False),
        (SHARE, {}, None, None),
        (SHARE, {"s|shr_2": "{}", "g|user:share:shr_1": "owner"}, None, None),
        (credential("share:shr_1"), {"s|shr_1": "{}"}, None, None),
    ],
)
def test_what_grants_requests_and_shares_make_of_a_credential(
    who: Credential, fields: dict[str, str], role: str | None, decides: bool | None
) -> None:
    caller = caller_of(who, "run_1", "ana", fields)
    assert (caller and caller.role, caller and caller.decides) == (role, decides)
    if role is not None:
        assert (
            caller_of(who, "run_1", "ana", {name: fields[name] for name in fields_for(who) if name in fields}) == caller
        )


def test_an_operator_who_owns_is_an_owner_as_well() -> None:
    root = credential("root", "operator")
    callers = [caller_of(root, "run_1", "ana", fields) for fields in ({}, {"g|user:root": "owner"})]
    assert [caller and (caller.role, caller.owns) for caller in callers] == [("operator", False), ("operator", True)]


@pytest.mark.parametrize(
    ("role", "lets_in"),
    [
        ("share", set()),
        ("viewer", set()),
        ("collaborator", {"collaborator"}),
        ("owner", {"collaborator", "owner"}),
        ("operator", {"collaborator", "owner", "operator"}),
        ("worker", set()),
    ],
)
def test_who_is_at_least_what_is_needed(role: Role, lets_in: set[str]) -> None:
    needs: tuple[Literal["collaborator", "owner", "operator"], ...] = ("collaborator", "owner", "operator")
    for needed in needs:
        if needed in lets_in:
            require_role(Caller("bob", role), needed)
        else:
            with pytest.raises(ProblemError) as refused:
                require_role(Caller("bob", role), needed)
            assert refused.value.problem.needs == needed


def test_a_verb_that_is_missing_is_named() -> None:
    require(credential(), "start")
    require(credential(verbs=["start"]), "start")
    with pytest.raises(ProblemError) as refused:
        require(credential(verbs=["read"]), "start")
    assert (refused.value.problem.code, refused.value.problem.needs) == ("forbidden", "start")
