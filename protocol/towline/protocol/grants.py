"""Grants and shares: who besides its starter reaches a run, as the store keeps it beside the log.

Promises that one place names the fields, reads roles from them, and knows that a run keeps an owner. The starter of a
run is its owner without a field of its own; a field for them (a lower role, or '' once taken away) outweighs that.
Leaves to `store.granting` how they change, to the gateway what a role may do.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Final, Literal, get_args

from msgspec import Struct

from towline.protocol.errors import problem
from towline.protocol.ids import is_run_id, is_subject

GrantRole = Literal["viewer", "collaborator", "owner"]
GRANT_ROLES: Final[tuple[GrantRole, ...]] = get_args(GrantRole)
"""Lowest first."""

GRANTS_MAX: Final = 100
SHARES_MAX: Final = 100
_NONE: Final = ""
_TOKEN: Final = re.compile(r"share~([A-Za-z0-9._-]{1,128})~(shr_[0-9A-Z]{26})~([A-Za-z0-9_-]{43})\Z")


def grant_field(entry: str) -> str:
    """The field of a run's side hash that holds the role of `entry`, such as `user:bob`."""
    return f"g|{entry}"


def named_field(entry: str) -> str:
    """The field that says that a request of the run names `entry` as decider or answerer."""
    return f"d|{entry}"


def share_field(share: str) -> str:
    """The field that holds a share."""
    return f"s|{share}"


def check_entry(entry: str, *, field: str) -> str:
    """`entry` if somebody may be granted a role by it. Raises `bad_request` on `field`."""
    kind, _, name = entry.partition(":")
    if kind not in ("user", "group") or not is_subject(name):
        raise problem(
            "bad_request",
            "A grant is for user:<sub> or group:<name>.",
            field=field,
            expected="user:<sub> or group:<name>",
        )
    return entry


def check_role(role: str, *, field: str) -> GrantRole:
    """`role` if it can be granted. Raises `bad_request` on `field`."""
    for known in GRANT_ROLES:
        if role == known:
            return known
    raise problem("bad_request", "No such role can be granted.", field=field, known=list(GRANT_ROLES))


def entries_of(subject: str, groups: Sequence[str]) -> list[str]:
    """The entries by which a caller can be named."""
    return [f"user:{subject}", *(f"group:{group}" for group in groups)]


def role_of(starter: str, subject: str, groups: Sequence[str], fields: Mapping[str, str]) -> GrantRole | None:
    """The highest role that a caller has on the run that `starter` started, from its side fields."""
    held = {fields.get(grant_field(entry)) for entry in entries_of(subject, groups)}
    if subject == starter and grant_field(f"user:{subject}") not in fields:
        held.add("owner")
    highest: GrantRole | None = None
    for role in GRANT_ROLES:
        highest = role if role in held else highest
    return highest


def is_named(subject: str, groups: Sequence[str], fields: Mapping[str, str]) -> bool:
    """Whether a request of the run names the caller."""
    return any(named_field(entry) in fields for entry in entries_of(subject, groups))


def effective(starter: str, fields: Mapping[str, str]) -> dict[str, GrantRole]:
    """All grants of a run by entry, the starter's own included, from its `g|` fields."""
    grants: dict[str, GrantRole] = {f"user:{starter}": "owner"}
    for field, role in fields.items():
        entry = field.removeprefix("g|")
        if role == _NONE:
            grants.pop(entry, None)
        else:
            grants[entry] = check_role(role, field=entry)
    return grants


def is_owned(grants: Mapping[str, GrantRole]) -> bool:
    """Whether anybody is left who owns the run."""
    return "owner" in grants.values()


class Share(Struct, frozen=True):
    """A read-only link as it is kept: only a hash of its secret. `deltas`: whether it also shows unfinished text."""

    share: str
    secret_hash: str
    expires_at_ms: int
    created_at_ms: int
    by: str
    deltas: bool = False


class ShareToken(Struct, frozen=True):
    """The parts of a share's token."""

    run: str
    share: str
    secret: str

    def opens(self, share: Share) -> bool:
        """Whether this is the token of `share`."""
        return share.share == self.share and hmac.compare_digest(hash_of(self.secret), share.secret_hash)

    def to_text(self) -> str:
        """The token as a caller presents it."""
        return f"share~{self.run}~{self.share}~{self.secret}"


def new_secret() -> str:
    """256 random bits as text."""
    return secrets.token_urlsafe(32)


def hash_of(secret: str) -> str:
    """What is kept of a secret: it is random and long, so a plain hash gives nothing away."""
    return hashlib.sha256(secret.encode()).hexdigest()


def read_share_token(text: str) -> ShareToken | None:
    """The parts of a share's token, or None for any other text."""
    match = _TOKEN.match(text)
    return ShareToken(*match.groups()) if match is not None and is_run_id(match[1]) else None
