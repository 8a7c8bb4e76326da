"""Credentials: what is minted is verified; everything else is refused without a word about the secret."""

import base64
import contextlib
import hashlib
import hmac
import json
import subprocess
import sys
from typing import Any

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from towline.protocol import tokens
from towline.protocol.tokens import BadToken, Credential
from towline.protocol.verifying import verify

SECRET = b"x" * 32
NOW_S = 1_800_000_000.0
CLAIMS: dict[str, Any] = {"sub": "ana", "exp": int(NOW_S) + 60, "towline": {"roles": ["user"]}}


def signed(
    claims: dict[str, Any] | None = None, *, secret: bytes = SECRET, algorithm: str = "HS256", **header: Any
) -> str:
    return jwt.encode(CLAIMS if claims is None else claims, secret, algorithm=algorithm, headers=header)


def raw(header: Any, payload: Any, signature: bytes = b"") -> str:
    parts = [json.dumps(part).encode() if not isinstance(part, bytes) else part for part in (header, payload)]
    return ".".join(base64.urlsafe_b64encode(p).rstrip(b"=").decode() for p in (*parts, signature))


def resigned(header: dict[str, Any], payload: bytes) -> str:
    """A token with any header at all and a signature that holds."""
    body = raw(header, payload).rpartition(".")[0]
    mac = hmac.new(SECRET, body.encode(), hashlib.sha256).digest()
    return body + "." + base64.urlsafe_b64encode(mac).rstrip(b"=").decode()


def test_what_is_minted_is_verified() -> None:
    token = tokens.mint(
        SECRET, subject="ana", roles=["user", "operator"], ttl_s=90, groups=["ops"], verbs=["read"], now_s=NOW_S
    )
    assert verify(SECRET, token, now_s=NOW_S) == Credential(
        "ana", int(NOW_S + 90) * 1000, ("user", "operator"), ("ops",), ("read",)
    )


@pytest.mark.parametrize(
    "change",
    [
        {"subject": ""},
        {"subject": "a b"},
        {"roles": []},
        {"roles": ["admin"]},
    ],
)
def test_minting_refuses_what_verifying_would(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"subject|roles"):
        tokens.mint(SECRET, **{"subject": "ana", "roles": ["user"], "ttl_s": 60, **change})


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 32"):
        tokens.mint(b"short", subject="ana", roles=["user"], ttl_s=60)


@pytest.mark.parametrize("text", ["-----BEGIN PUBLIC KEY-----\n", "ssh-ed25519 ", "ecdsa-sha2-nistp256 "])
def test_a_key_of_another_kind_is_no_secret(text: str) -> None:
    with pytest.raises(ValueError, match="another kind"):
        tokens.mint(text.encode() + b"A" * 64, subject="ana", roles=["user"], ttl_s=60)


def test_minting_waits_for_no_library_of_signatures() -> None:
    code = "import sys, towline.protocol.tokens; print(sorted({'jwt', 'cryptography'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


HEADER = {"alg": "HS256", "typ": "JWT"}
PAYLOAD = json.dumps(CLAIMS).encode()

BAD = {
    "empty": "",
    "no dots": "abc",
    "alg none": raw({"alg": "none"}, CLAIMS),
    "alg None": raw({"alg": "None"}, CLAIMS),
    "alg NONE": raw({"alg": "NONE"}, CLAIMS),
    "alg none, signed": resigned({"alg": "none"}, PAYLOAD),
    "no alg": resigned({"typ": "JWT"}, PAYLOAD),
    "alg list": resigned({"alg": ["HS256"]}, PAYLOAD),
    "another algorithm": signed(algorithm="HS512", secret=b"x" * 64),
    "same secret, another algorithm": signed(algorithm="HS384", secret=SECRET + SECRET[:16]),
    "another secret": signed(secret=b"y" * 32),
    "no signature": signed().rpartition(".")[0] + ".",
    "half a signature": signed()[:-20],
    "a byte more": signed() + "A",
    "jku": signed(jku="https://evil.example/keys"),
    "x5u": signed(x5u="https://evil.example/cert"),
    "jwk": signed(jwk={"kty": "oct", "k": "AAAA"}),
    "x5c": signed(x5c=["AAAA"]),
    "crit": resigned({**HEADER, "crit": ["exp"]}, PAYLOAD),
    "b64": resigned({**HEADER, "b64": False}, PAYLOAD),
    "kid a path": resigned({**HEADER, "kid": "../../dev/null", "jku": "x"}, PAYLOAD),
    "another type": signed(typ="ticket+jwt"),
    "type is a number": resigned({**HEADER, "typ": 5}, PAYLOAD),
    "type is an object": resigned({**HEADER, "typ": {}}, PAYLOAD),
    "header is a list": resigned([], PAYLOAD),  # type: ignore[arg-type]
    "payload no JSON": resigned(HEADER, b"nope"),
    "payload a list": resigned(HEADER, b"[]"),
    "payload too deep": resigned(HEADER, b"[" * 3000),
    "a megabyte": signed({**CLAIMS, "x": "x" * 2**20}),
    "not ascii": signed()[:-1] + "é",
    "no sub": signed({k: v for k, v in CLAIMS.items() if k != "sub"}),
    "sub with a line": signed({**CLAIMS, "sub": "ana\nroot"}),
    "sub empty": signed({**CLAIMS, "sub": ""}),
    "sub a list": resigned(HEADER, json.dumps({**CLAIMS, "sub": ["ana"]}).encode()),
    "no exp": signed({k: v for k, v in CLAIMS.items() if k != "exp"}),
    "exp in the past": signed({**CLAIMS, "exp": int(NOW_S) - 1}),
    "exp now": signed({**CLAIMS, "exp": int(NOW_S)}),
    "exp a word": resigned(HEADER, json.dumps({**CLAIMS, "exp": "tomorrow"}).encode()),
    "exp after the end of time": signed({**CLAIMS, "exp": 10**18}),
    "exp NaN": resigned(HEADER, PAYLOAD.replace(str(CLAIMS["exp"]).encode(), b"NaN")),
    "not before long": signed({**CLAIMS, "nbf": int(NOW_S) + 61}),
    "issued in the future": signed({**CLAIMS, "iat": int(NOW_S) + 61}),
    "no claim of ours": signed({k: v for k, v in CLAIMS.items() if k != "towline"}),
    "no roles": signed({**CLAIMS, "towline": {"roles": []}}),
    "an unknown role": signed({**CLAIMS, "towline": {"roles": ["root"]}}),
    "an unknown verb": signed({**CLAIMS, "towline": {"roles": ["user"], "verbs": ["sudo"]}}),
    "roles a word": signed({**CLAIMS, "towline": {"roles": "operator"}}),
    "runs a word": signed({**CLAIMS, "towline": {"roles": ["user"], "runs": "*"}}),
    "groups a word": signed({**CLAIMS, "groups": "ops"}),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_refused(name: str) -> None:
    with pytest.raises(BadToken) as refusal:
        verify(SECRET, BAD[name], now_s=NOW_S)
    assert SECRET.decode() not in str(refusal.value)
    assert refusal.value.has_ended == (name in ("exp in the past", "exp now"))


def test_a_clock_that_runs_ahead_a_little_is_let_pass() -> None:
    ahead = int(NOW_S) + 20
    assert verify(SECRET, signed({**CLAIMS, "nbf": ahead, "iat": ahead}), now_s=NOW_S).subject == "ana"


def test_a_plain_kid_is_let_pass() -> None:
    assert verify(SECRET, signed(kid="2026-11"), now_s=NOW_S).subject == "ana"


@given(st.one_of(st.text(max_size=300), st.text("abcdefABCDEF0123456789-_.=", max_size=300)))
def test_any_text_is_verified_or_refused(text: str) -> None:
    with pytest.raises(BadToken):
        verify(SECRET, text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
names = st.sampled_from(["sub", "exp", "nbf", "iat", "groups", "towline", "alg", "typ", "kid", "roles"])


@given(st.dictionaries(names, json_values), st.dictionaries(names, json_values))
def test_any_signed_token_is_verified_or_refused(header: dict[str, Any], payload: dict[str, Any]) -> None:
    for claims in (payload, {**CLAIMS, **payload}):
        token = resigned({**HEADER, **header}, json.dumps(claims).encode())
        with contextlib.suppress(BadToken):
            assert isinstance(verify(SECRET, token, now_s=NOW_S), Credential)
