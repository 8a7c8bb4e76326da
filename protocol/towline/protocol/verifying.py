"""Verifying the JWT of a caller.

Promises that `verify` returns a `Credential` or raises `BadToken`, whatever the text is: each key has one algorithm
and the header only has to name it, no key or key address is taken from the token, no unknown critical header, `sub`,
`exp` and our own claim required, `iss` and `aud` where a gateway names its own. A refusal says what to do, never what
the secret or the token is. Leaves to `gateway.access` what a caller may do with a run, public keys to `jwks`, minting
to `tokens`.
"""

import time
from collections.abc import Sequence
from typing import Annotated, Any, Final, get_args

import jwt
import msgspec
from msgspec import Meta, Struct

from towline.protocol.ids import is_subject
from towline.protocol.jwks import Algorithm, PublicKey, is_kid
from towline.protocol.tokens import MEMBERS_MAX, SECRET_ALGORITHM, BadToken, Credential, TowlineClaim

MAX_TOKEN_BYTES: Final = 8 * 1024
LEEWAY_S: Final = 30
"""How far the clock of an issuer may run ahead of ours (`nbf`, `iat`). An end is an end: none on `exp`."""

_MAX_EXP: Final = 253_402_300_799
"""The last second of the year 9999: what our times can express."""

_PUBLIC: Final = get_args(Algorithm)
_TYPES: Final = (None, "JWT", "at+jwt", "application/at+jwt")
_HEADERS: Final = frozenset({"alg", "typ", "kid"})


class UnknownKey(BadToken):
    """No key that we know signed it; the issuer may have a newer one."""


class _Claims(Struct, frozen=True):
    sub: str
    exp: int | float
    towline: TowlineClaim
    nbf: int | float | None = None
    iat: int | float | None = None
    groups: Annotated[list[Annotated[str, Meta(max_length=256)]], Meta(max_length=1000)] = []
    iss: str | None = None
    aud: str | Annotated[list[str], Meta(max_length=MEMBERS_MAX)] | None = None


class Keyring(Struct, frozen=True):
    """What a gateway takes: a secret (HS256), public keys (RS256, ES256, EdDSA), and whose tokens for whom."""

    secret: bytes | None = None
    public: Sequence[PublicKey] = ()
    issuer: str | None = None
    audience: str | None = None


def verify(keys: bytes | Keyring, token: str, *, now_s: float | None = None) -> Credential:
    """The credential that `token` proves to a secret or a keyring. Raises `BadToken`."""
    keys = Keyring(keys) if isinstance(keys, bytes) else keys
    now_s = time.time() if now_s is None else now_s
    if len(token) > MAX_TOKEN_BYTES:
        raise BadToken(f"It is longer than {MAX_TOKEN_BYTES} bytes.")
    if not token.isascii():
        raise BadToken("It is not a JWT.")
    payload = _checked_payload(keys, token)
    try:
        claims = msgspec.json.decode(payload, type=_Claims)
    except (msgspec.MsgspecError, RecursionError):
        raise BadToken("It lacks a claim, or has one of the wrong type: sub, exp, towline.roles are needed.") from None
    if not is_subject(claims.sub):
        raise BadToken("Its subject is not 1 to 256 characters without white space.")
    if keys.issuer is not None and claims.iss != keys.issuer:
        raise BadToken("It is from another issuer (iss).")
    audience = [claims.aud] if isinstance(claims.aud, str) else claims.aud or []
    if keys.audience is not None and keys.audience not in audience:
        raise BadToken("It is for another audience (aud).")
    if not 0 < claims.exp <= _MAX_EXP:
        raise BadToken("Its end (exp) is not a time in seconds.")
    if claims.exp <= now_s:
        raise BadToken("It has ended; get a new one.", has_ended=True)
    if (claims.nbf or 0) > now_s + LEEWAY_S or (claims.iat or 0) > now_s + LEEWAY_S:
        raise BadToken("It is not valid yet; check the clocks.")
    return Credential(
        subject=claims.sub,
        expires_at_ms=int(claims.exp * 1000),
        roles=tuple(claims.towline.roles),
        groups=tuple(claims.groups),
        verbs=None if claims.towline.verbs is None else tuple(claims.towline.verbs),
        runs=None if claims.towline.runs is None else tuple(claims.towline.runs),
    )


def _checked_payload(keys: Keyring, token: str) -> bytes:
    """The payload of a token whose header is of ours and whose signature holds."""
    try:
        header = jwt.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise BadToken("It is not a JWT.") from None
    if unknown := sorted(set(header) - _HEADERS):
        # `jku`, `x5u`, `jwk`, `x5c` would let the token bring its own key; `crit` asks for what we do not know.
        known = [name for name in unknown if name in ("jku", "x5u", "jwk", "x5c", "crit", "b64", "zip")]
        raise BadToken(f"Its header has members that are not taken{': ' + ', '.join(known) if known else ''}.")
    if header.get("typ") not in _TYPES:
        raise BadToken("It is of another type than an access token.")
    if "kid" in header and not is_kid(header["kid"]):
        raise BadToken("No key is named so (kid).")
    key, algorithm = _key_for(keys, header.get("alg"), header.get("kid"))
    try:
        return jwt.api_jws.decode(token, key, algorithms=[algorithm])  # type: ignore[no-any-return]
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise BadToken("Its signature does not hold.") from None


def _key_for(keys: Keyring, algorithm: object, kid: str | None) -> tuple[Any, str]:
    """The key that must have signed, with its one algorithm. A header chooses among keys, never how one is used."""
    taken = [*([SECRET_ALGORITHM] if keys.secret is not None else []), *sorted({key.algorithm for key in keys.public})]
    if algorithm == SECRET_ALGORITHM and keys.secret is not None:
        return keys.secret, SECRET_ALGORITHM
    if algorithm not in _PUBLIC:
        raise BadToken(f"It is not signed with {' or '.join(taken)}.")
    found = [key for key in keys.public if key.algorithm == algorithm and kid in (None, key.kid)]
    if len(found) != 1:
        raise UnknownKey("It names no key (kid) of the issuer that signs so.")
    return found[0].key, found[0].algorithm
