"""Public keys: what of a JWK Set verifies a credential, and with which algorithm alone."""

import base64
import hashlib
import hmac
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from towline.protocol import verifying
from towline.protocol.jwks import BadKeys, is_kid, read_keys
from towline.protocol.tokens import BadToken, Credential
from towline.protocol.verifying import Keyring, UnknownKey

NOW_S = 1_800_000_000.0
CLAIMS: dict[str, Any] = {"sub": "ana", "exp": int(NOW_S) + 60, "towline": {"roles": ["user"]}}
SECRET = b"s" * 32

RSA = rsa.generate_private_key(65537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
ALGORITHMS: dict[str, Any] = {"RS256": RSA, "ES256": EC, "EdDSA": ED}


def jwk_of(key: Any, **members: Any) -> dict[str, Any]:
    kinds: dict[type, Any] = {
        rsa.RSAPrivateKey: RSAAlgorithm,
        ec.EllipticCurvePrivateKey: ECAlgorithm,
        ed25519.Ed25519PrivateKey: OKPAlgorithm,
    }
    (algorithm,) = [a for kind, a in kinds.items() if isinstance(key, kind)]
    found: dict[str, Any] = json.loads(algorithm.to_jwk(key.public_key()))
    found.pop("key_ops", None)
    return {**found, **members}


def set_of(*jwks: dict[str, Any]) -> bytes:
    return json.dumps({"keys": jwks}).encode()


RING = Keyring(SECRET, read_keys(set_of(*(jwk_of(key, kid=name) for name, key in ALGORITHMS.items()))))


def signed(algorithm: str, *, key: Any = None, claims: dict[str, Any] | None = None, **header: Any) -> str:
    key = key or ALGORITHMS.get(algorithm, SECRET)
    return jwt.encode(CLAIMS if claims is None else claims, key, algorithm=algorithm, headers=header)


def verify(ring: Keyring, token: str) -> Credential:
    return verifying.verify(ring, token, now_s=NOW_S)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_each_algorithm_is_taken_with_the_name_of_its_key_or_without(algorithm: str) -> None:
    assert verify(RING, signed(algorithm, kid=algorithm)).subject == "ana"
    assert verify(RING, signed(algorithm)).subject == "ana"
    assert verify(RING, signed("HS256", key=SECRET, kid="any")).subject == "ana"


PUBLIC_PEM = RSA.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def confused() -> str:
    """HS256 signed with the public RSA key, as text that everyone has."""
    parts = [{"alg": "HS256", "typ": "JWT", "kid": "RS256"}, CLAIMS]
    body = ".".join(base64.urlsafe_b64encode(json.dumps(p).encode()).rstrip(b"=").decode() for p in parts)
    mac = hmac.new(PUBLIC_PEM, body.encode(), hashlib.sha256).digest()
    return body + "." + base64.urlsafe_b64encode(mac).rstrip(b"=").decode()


BAD = {
    "the public key as a secret": confused(),
    "the key of another algorithm": signed("ES256", kid="RS256"),
    "another key of the same kind": signed("RS256", key=rsa.generate_private_key(65537, 2048), kid="RS256"),
    "a key that is not there": signed("ES256", kid="newer"),
    "PS256 with an RSA key": signed("PS256", key=RSA, kid="RS256"),
    "RS512 with an RSA key": signed("RS512", key=RSA, kid="RS256"),
    "ES384": signed("ES384", key=ec.generate_private_key(ec.SECP384R1()), kid="ES256"),
    "a key address": signed("RS256", kid="RS256", jku="https://evil.example/keys"),
    "a key of its own": signed("RS256", jwk=jwk_of(RSA)),
    "a certificate address": signed("RS256", x5u="https://evil.example"),
    "kid a path": signed("RS256", kid="../../dev/null"),
    "kid a query": signed("RS256", kid="x' OR 1=1 --"),
    "kid an address": signed("RS256", kid="https://evil.example/k"),
    "kid endless": signed("RS256", kid="k" * 200),
    "kid empty": signed("RS256", kid=""),
}


@pytest.mark.parametrize("name", BAD)
def test_no_other_signature_opens(name: str) -> None:
    with pytest.raises(BadToken):
        verify(RING, BAD[name])


def test_without_a_secret_no_secret_opens() -> None:
    ring = Keyring(None, RING.public)
    for token in (signed("HS256", key=SECRET), confused(), signed("HS256", key=b"\0" * 32)):
        with pytest.raises(BadToken):
            verify(ring, token)
    assert verify(ring, signed("EdDSA")).subject == "ana"


def test_an_unknown_key_may_be_a_newer_one() -> None:
    with pytest.raises(UnknownKey):
        verify(RING, signed("ES256", kid="newer"))
    two = Keyring(
        None, read_keys(set_of(jwk_of(EC, kid="a"), jwk_of(ec.generate_private_key(ec.SECP256R1()), kid="b")))
    )
    with pytest.raises(UnknownKey):  # which of the two is not said
        verify(two, signed("ES256"))
    assert verify(two, signed("ES256", kid="a")).subject == "ana"


@pytest.mark.parametrize(
    ("ring", "claims", "taken"),
    [
        ({"issuer": "https://id.example"}, {"iss": "https://id.example"}, True),
        ({"issuer": "https://id.example"}, {"iss": "https://id.example/"}, False),
        ({"issuer": "https://id.example"}, {}, False),
        ({"audience": "towline"}, {"aud": "towline"}, True),
        ({"audience": "towline"}, {"aud": ["other", "towline"]}, True),
        ({"audience": "towline"}, {"aud": ["other"]}, False),
        ({"audience": "towline"}, {"aud": "towline2"}, False),
        ({"audience": "towline"}, {"aud": []}, False),
        ({"audience": "towline"}, {"aud": {"towline": 1}}, False),
        ({"audience": "towline"}, {}, False),
        ({}, {"iss": "anyone", "aud": "anyone"}, True),
    ],
)
def test_whose_tokens_and_for_whom(ring: dict[str, Any], claims: dict[str, Any], taken: bool) -> None:
    token = signed("HS256", key=SECRET, claims={**CLAIMS, **claims})
    if taken:
        assert verify(Keyring(SECRET, **ring), token).subject == "ana"
    else:
        with pytest.raises(BadToken):
            verify(Keyring(SECRET, **ring), token)


GOOD = jwk_of(EC, kid="good")


@pytest.mark.parametrize(
    "jwk",
    [
        {"kty": "oct", "k": "c2VjcmV0", "kid": "x"},
        jwk_of(RSA, use="enc"),
        jwk_of(RSA, key_ops=["encrypt"]),
        jwk_of(RSA, alg="RS512"),
        jwk_of(RSA, alg="HS256"),
        jwk_of(EC, kid="../x"),
        jwk_of(EC, kid=7),
        jwk_of(rsa.generate_private_key(65537, 1024)),
        jwk_of(ec.generate_private_key(ec.SECP384R1())),
        json.loads(OKPAlgorithm.to_jwk(ED)),
        {"kty": "RSA", "n": "AA", "e": "AQAB"},
        {"kty": "RSA"},
        {"kty": "OKP", "crv": "Ed448", "x": "AA"},
        {},
    ],
)
def test_what_is_no_key_is_left_out(jwk: dict[str, Any]) -> None:
    assert [key.kid for key in read_keys(set_of(jwk, GOOD))] == ["good"]
    with pytest.raises(BadKeys):
        read_keys(set_of(jwk))


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b"{}", b'{"keys":5}', b'{"keys":["x"]}', b"[" * 5000, set_of(), b" " * 300_000, set_of(GOOD, GOOD)],
)
def test_what_is_no_set_is_refused(text: bytes) -> None:
    with pytest.raises(BadKeys):
        read_keys(text)


def test_the_newer_name_of_eddsa_is_the_same() -> None:
    (key,) = read_keys(set_of(jwk_of(ED, alg="Ed25519")))
    assert (key.kid, key.algorithm) == (None, "EdDSA")
    assert is_kid("2026-11.a")
    assert not is_kid(None)
