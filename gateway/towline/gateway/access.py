"""Who may do what: from a credential to the caller of one run.

Promises that what a caller may not read answers `not_found`, the same as what does not exist, that the verbs and run
globs of a credential only narrow, and that one function says who a credential is on a run: an operator, an owner,
somebody with a grant of their own or through a group, a named decider, a share link, or nobody. It decides from the
fields of the run that `fields_for` names, read just before; nothing of it is remembered.
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Literal

from towline.protocol import grants
from towline.protocol.errors import ProblemError, problem
from towline.protocol.projection import Caller, Role
from towline.protocol.tokens import Credential, Verb


def not_found() -> ProblemError:
    """The one answer for a run that is missing, and for one that is another's."""
    return problem("not_found", "There is no such run, or you may not read it.")


def covers(credential: Credential, run: str) -> bool:
    """Whether the credential reaches this run at all."""
    return credential.runs is None or any(fnmatchcase(run, pattern) for pattern in credential.runs)


def fields_for(credential: Credential) -> list[str]:
    """The side fields of a run that decide what `credential` is on it."""
    if credential.share is not None:
        return [grants.share_field(credential.share)]
    entries = grants.entries_of(credential.subject, credential.groups)
    return [field(entry) for entry in entries for field in (grants.grant_field, grants.named_field)]


def caller_of(
    credential: Credential,
    run: str,
    starter: str,
    fields: Mapping[str, str] | None = None,
    *,
    verb: Verb | None = "read",
) -> Caller | None:
    """The caller that `credential` is on `run`, which `starter` started; None if it may not even know of it.

    `fields` are those of `fields_for`, as they stand in the store. With `verb` None the verbs are looked at later, by
    what asks for another than read.
    """
    fields = fields or {}
    if (verb is not None and not credential.allows(verb)) or not covers(credential, run):
        return None
    if credential.share is not None:
        if grants.share_field(credential.share) not in fields:
            return None
        return Caller(credential.subject, "share", (), decides=False)
    held = grants.role_of(starter, credential.subject, credential.groups, fields)
    role: Role | None = held
    if "operator" in credential.roles:
        role = "operator"
    elif held is None and grants.is_named(credential.subject, credential.groups, fields):
        role = "viewer"
    if role is None:
        return None
    return Caller(
        credential.subject, role, credential.groups, _decides(credential), role == "operator" and held == "owner"
    )


def starter(credential: Credential) -> Caller:
    """The caller that `credential` is on a run that it starts."""
    is_operator = "operator" in credential.roles
    role: Role = "operator" if is_operator else "owner"
    return Caller(credential.subject, role, credential.groups, _decides(credential), is_operator)


def _decides(credential: Credential) -> bool:
    """A credential that may work never decides: an agent that holds it would approve itself."""
    return "worker" not in credential.roles and credential.runs is None


def require(credential: Credential, verb: Verb) -> None:
    """Raises `forbidden` unless the credential's verbs include `verb`."""
    if not credential.allows(verb):
        raise problem("forbidden", f"This credential does not allow to {verb}.", needs=verb)


def require_role(caller: Caller, needs: Literal["collaborator", "owner", "operator"]) -> None:
    """Raises `forbidden` unless the caller is at least `needs` on the run."""
    order = ("share", "viewer", "collaborator", "owner", "operator")
    if caller.role not in order or order.index(caller.role) < order.index(needs):
        raise problem("forbidden", f"Only the {needs} of this run may do this.", needs=needs)
