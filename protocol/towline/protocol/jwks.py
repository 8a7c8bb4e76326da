"""Public keys of an issuer: what a JWK Set says, reduced to what may verify a credential.

Promises that each key verifies with one algorithm, its own, whatever a token's header asks for; that a secret key
published by mistake, a short RSA key or one that is for encryption is no key here. Leaves where the set comes from to
the gateway, and the token to `tokens`.
"""

import re
from collections.abc import Sequence
from typing import Any, Final, Literal

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from msgspec import Struct

Algorithm = Literal["RS256", "ES256", "EdDSA"]
MAX_SET_BYTES: Final = 256 * 1024
_RSA_BITS_MIN: Final = 2048
_KEYS_MAX: Final = 100
_KID: Final = re.compile(r"[A-Za-z0-9._~+=:@-]{1,128}\Z")


class BadKeys(ValueError):
    """The text is no JWK Set that holds a key we could use; the message says why."""


class PublicKey(Struct, frozen=True):
    """One key, its name in the set if it has one, and the one algorithm it verifies with."""

    kid: str | None
    algorithm: Algorithm
    key: Any


class _Set(Struct, frozen=True):
    keys: list[dict[str, Any]]


def is_kid(text: object) -> bool:
    """Whether `text` may name a key."""
    return isinstance(text, str) and bool(_KID.match(text))


def read_keys(text: bytes) -> Sequence[PublicKey]:
    """The keys of a JWK Set that may verify a credential. Raises `BadKeys`."""
    if len(text) > MAX_SET_BYTES:
        raise BadKeys(f"it is larger than {MAX_SET_BYTES} bytes")
    try:
        found = msgspec.json.decode(text, type=_Set)
    except (msgspec.MsgspecError, RecursionError):
        raise BadKeys("it is no JSON object with a list of keys") from None
    if len(found.keys) > _KEYS_MAX:
        raise BadKeys(f"it holds more than {_KEYS_MAX} keys")
    keys = [key for jwk in found.keys if (key := _key_of(jwk)) is not None]
    if not keys:
        raise BadKeys("none of its keys verifies with RS256, ES256 or EdDSA")
    named = [(key.kid, key.algorithm) for key in keys if key.kid is not None]
    if len(set(named)) != len(named):
        raise BadKeys("two of its keys have one name")
    return keys


def _key_of(jwk: dict[str, Any]) -> PublicKey | None:
    """The key in `jwk`, or None for one that is for something else."""
    kid, operations = jwk.get("kid"), jwk.get("key_ops", ["verify"])
    if jwk.get("use", "sig") != "sig" or not isinstance(operations, list) or "verify" not in operations:
        return None
    if kid is not None and not is_kid(kid):
        return None
    if jwk.get("kty") not in ("RSA", "EC", "OKP") or "d" in jwk:
        return None
    try:
        key = jwt.PyJWK({name: value for name, value in jwk.items() if name != "alg"}).key
    except (jwt.PyJWTError, ValueError, TypeError, KeyError):
        return None
    algorithm = _algorithm_of(key)
    if algorithm is None or jwk.get("alg", algorithm) not in (algorithm, *_NAMES.get(algorithm, ())):
        return None
    return PublicKey(kid, algorithm, key)


_NAMES: Final[dict[str, tuple[str, ...]]] = {"EdDSA": ("Ed25519",)}
"""Newer names of the same algorithm."""


def _algorithm_of(key: object) -> Algorithm | None:
    if isinstance(key, RSAPublicKey):
        return "RS256" if key.key_size >= _RSA_BITS_MIN else None
    if isinstance(key, EllipticCurvePublicKey):
        return "ES256" if isinstance(key.curve, SECP256R1) else None
    return "EdDSA" if isinstance(key, Ed25519PublicKey) else None
