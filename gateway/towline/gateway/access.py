"""Who may do what: from a credential to the caller of one run.

Promises that what a caller may not read answers `not_found`, the same as what does not exist, and that the verbs
and run globs of a credential only narrow. Grants to others come later: today a run is its owner's and the
operators'.
"""

from fnmatch import fnmatchcase

from towline.protocol.errors import ProblemError, problem
from towline.protocol.projection import Caller
from towline.protocol.tokens import Credential, Verb


def not_found() -> ProblemError:
    """The one answer for a run that is missing, and for one that is another's."""
    return problem("not_found", "There is no such run, or you may not read it.")


def covers(credential: Credential, run: str) -> bool:
    """Whether the credential reaches this run at all."""
    return credential.runs is None or any(fnmatchcase(run, pattern) for pattern in credential.runs)


def caller_of(credential: Credential, run: str, owner: str) -> Caller | None:
    """The caller that `credential` is on `run`, or None if it may not even know of it."""
    if not credential.allows("read") or not covers(credential, run):
        return None
    # A credential that may work never decides: an agent that holds it would approve itself.
    decides = "worker" not in credential.roles and credential.runs is None
    if "operator" in credential.roles:
        return Caller(credential.subject, "operator", credential.groups, decides, credential.subject == owner)
    if credential.subject == owner:
        return Caller(credential.subject, "owner", credential.groups, decides)
    return None


def require(credential: Credential, verb: Verb) -> None:
    """Raises `forbidden` unless the credential's verbs include `verb`."""
    if not credential.allows(verb):
        raise problem("forbidden", f"This credential does not allow to {verb}.", needs=verb)
