"""Access: who a credential is on a run, for every role, verb and glob."""

import pytest

from towline.gateway.access import caller_of, require
from towline.protocol.errors import ProblemError
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


def test_a_verb_that_is_missing_is_named() -> None:
    require(credential(), "start")
    require(credential(verbs=["start"]), "start")
    with pytest.raises(ProblemError) as refused:
        require(credential(verbs=["read"]), "start")
    assert (refused.value.problem.code, refused.value.problem.needs) == ("forbidden", "start")
