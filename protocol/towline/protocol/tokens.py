"""Credentials: what the JWT of a caller says, and minting one with a secret.

Promises that a minted token is one that `verifying` takes. The signature of a secret is a few lines here, since the
library that verifies every kind costs a tenth of a second to import, which who only mints (`towline run`,
`towline token`) need not wait for. Leaves to `gateway.access` what a caller may do with a run.
"""

import base64
import hashlib
import hmac
import time
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from towline.protocol.ids import is_subject

SECRET_VARIABLE: Final = "TOWLINE_JWT_SECRET"
"""Environment variable with the secret that gateways verify with and `towline token` mints with."""

MIN_SECRET_BYTES: Final = 32

GlobalRole = Literal["user", "operator", "worker"]
Verb = Literal["read", "command", "start", "admin"]
ROLES: Final[tuple[GlobalRole, ...]] = ("user", "operator", "worker")
SECRET_ALGORITHM: Final = "HS256"
MEMBERS_MAX: Final = 100


class BadToken(Exception):
    """The credential is not valid; the message says why, without quoting it. `has_ended`: it was, until `exp`."""

    def __init__(self, why: str, *, has_ended: bool = False) -> None:
        super().__init__(why)
        self.has_ended = has_ended


class TowlineClaim(Struct, frozen=True):
    """Our claim in a token. `verbs` and `runs` (globs of run ids) narrow what its roles give."""

    roles: Annotated[list[GlobalRole], Meta(min_length=1, max_length=MEMBERS_MAX)]
    verbs: Annotated[list[Verb], Meta(max_length=MEMBERS_MAX)] | None = None
    runs: Annotated[list[Annotated[str, Meta(max_length=256)]], Meta(max_length=MEMBERS_MAX)] | None = None


class Credential(Struct, frozen=True):
    """Who calls, until when (`expires_at_ms`), in which roles, narrowed to which verbs and runs.

    `share`: it is a link to one run, not a person; it lasts as long as that share. `deltas`: it may read unfinished
    text.
    """

    subject: str
    expires_at_ms: int
    roles: Sequence[GlobalRole]
    groups: Sequence[str] = ()
    verbs: Sequence[Verb] | None = None
    runs: Sequence[str] | None = None
    share: str | None = None
    deltas: bool = True

    def allows(self, verb: Verb) -> bool:
        """Whether the token's verbs include `verb`; without the claim they include all."""
        return self.verbs is None or verb in self.verbs


def mint(
    secret: bytes,
    *,
    subject: str,
    roles: Sequence[GlobalRole],
    ttl_s: float,
    groups: Sequence[str] = (),
    verbs: Sequence[Verb] | None = None,
    runs: Sequence[str] | None = None,
    now_s: float | None = None,
) -> str:
    """A token for `subject`, valid from now for `ttl_s` seconds.

    Raises `ValueError` for a subject, a role or a secret that `verify` would refuse.
    """
    if not is_subject(subject):
        raise ValueError("a subject is 1 to 256 characters without white space")
    if not roles or any(role not in ROLES for role in roles):
        raise ValueError(f"a token has one or more of the roles {', '.join(ROLES)}")
    refuse_weak(secret)
    now_s = time.time() if now_s is None else now_s
    towline: dict[str, Any] = {"roles": list(roles)}
    if verbs is not None:
        towline["verbs"] = list(verbs)
    if runs is not None:
        towline["runs"] = list(runs)
    claims: dict[str, Any] = {"sub": subject, "iat": int(now_s), "exp": int(now_s + ttl_s), "towline": towline}
    if groups:
        claims["groups"] = list(groups)
    signed = f"{_part({'typ': 'JWT', 'alg': SECRET_ALGORITHM})}.{_part(claims)}"
    return f"{signed}.{_base64(hmac.digest(secret, signed.encode(), hashlib.sha256))}"


def _part(members: dict[str, Any]) -> str:
    return _base64(msgspec.json.encode(members))


def _base64(part: bytes) -> str:
    return base64.urlsafe_b64encode(part).rstrip(b"=").decode()


def refuse_weak(secret: bytes) -> None:
    """Raises `ValueError` for a secret that could be guessed, or that is a key which may be known to others."""
    if secret.lstrip().startswith((b"-----BEGIN", b"ssh-", b"ecdsa-sha2-")):
        raise ValueError("the secret is a key of another kind; it needs to be random bytes")
    if len(secret) < MIN_SECRET_BYTES:
        raise ValueError(f"the secret has {len(secret)} bytes, it needs at least {MIN_SECRET_BYTES} random ones")
