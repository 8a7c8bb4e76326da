"""Credentials of an issuer with keys of its own: from a URL, from a file, renewed, and asked no more than needed."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from jwt.algorithms import ECAlgorithm

from tests.support.gateway import running_gateway, token
from tests.support.sharing import bearer
from towline.gateway import issuer as issuer_module
from towline.gateway.issuer import Issuer
from towline.protocol.errors import ProblemError

pytestmark = pytest.mark.store

EXP = 4_000_000_000


class Publisher:
    """An issuer: a key set at a URL, and the keys that sign."""

    def __init__(self) -> None:
        self.keys: dict[str, EllipticCurvePrivateKey] = {}
        self.asked = 0
        self.status = 200
        self.body: bytes | None = None
        publisher = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                publisher.asked += 1
                self.send_response(publisher.status)
                self.end_headers()
                self.wfile.write(publisher.body if publisher.body is not None else publisher.text())

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/keys"
        self._thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self._thread.start()

    def rotate(self, kid: str) -> None:
        """From now on another key signs."""
        self.keys = {kid: generate_private_key(SECP256R1())}

    def text(self) -> bytes:
        found = [{**json.loads(ECAlgorithm.to_jwk(key.public_key())), "kid": kid} for kid, key in self.keys.items()]
        return json.dumps({"keys": [{k: v for k, v in jwk.items() if k != "key_ops"} for jwk in found]}).encode()

    def token(self, subject: str = "ana", **more: Any) -> str:
        ((kid, key),) = self.keys.items()
        claims = {"sub": subject, "exp": EXP, "towline": {"roles": ["user"]}, "iss": "me", "aud": "towline", **more}
        return jwt.encode(claims, key, algorithm="ES256", headers={"kid": kid})

    def stop(self) -> None:
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    publisher = Publisher()
    publisher.rotate("one")
    yield publisher
    publisher.stop()


async def test_tokens_of_the_issuer_open_beside_those_of_the_secret(
    redis_url: str, tmp_path: Path, publisher: Publisher
) -> None:
    async with running_gateway(redis_url, tmp_path, jwks=publisher.url, issuer="me", audience="towline") as gateway:
        who = await gateway.http.get("/v1/whoami", headers=bearer(publisher.token()))
        assert (who.status_code, who.json()["subject"]) == (200, "ana")
        for _ in range(20):
            assert (await gateway.http.get("/v1/whoami", headers=bearer(publisher.token()))).status_code == 200
        assert publisher.asked == 1
        for bad in (publisher.token(iss="you"), publisher.token(aud="other"), token()):
            assert (await gateway.http.get("/v1/whoami", headers=bearer(bad))).status_code == 401
        async with gateway.socket(publisher.token()) as wire:
            assert wire.frames[-1]["op"] == "welcome"


async def test_a_newer_key_is_found_and_made_up_ones_cost_one_question(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    issuer = Issuer(publisher.url)
    assert [key.kid for key in await issuer.keys()] == ["one"]
    publisher.rotate("two")
    assert [key.kid for key in await issuer.keys(anew=True)] == ["one"]  # asked a moment ago
    for _ in range(50):
        await issuer.keys(anew=True)
    assert publisher.asked == 1
    monkeypatch.setattr(issuer_module, "_ASK_S", -1.0)
    assert [key.kid for key in await issuer.keys(anew=True)] == ["two"]


@pytest.mark.parametrize(("status", "body"), [(500, None), (200, b"<html>"), (200, b"x" * 300_000), (302, b"")])
async def test_the_keys_hold_while_the_issuer_is_ill(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch, status: int, body: bytes | None
) -> None:
    monkeypatch.setattr(issuer_module, "_ASK_S", -1.0)
    issuer = Issuer(publisher.url)
    await issuer.keys()
    publisher.status, publisher.body = status, body
    assert [key.kid for key in await issuer.keys(anew=True)] == ["one"]
    with pytest.raises(ProblemError) as refused:
        await Issuer(publisher.url).keys()
    assert refused.value.problem.code == "unavailable"
    publisher.status, publisher.body = 200, None
    assert [key.kid for key in await issuer.keys(anew=True)] == ["one"]


async def test_nobody_comes_in_while_no_key_is_known(redis_url: str, tmp_path: Path, publisher: Publisher) -> None:
    async with running_gateway(redis_url, tmp_path, jwks=str(tmp_path / "keys.json")) as gateway:
        assert (await gateway.http.get("/v1/whoami", headers=bearer(publisher.token()))).status_code == 503
        async with gateway.socket(hello=False) as wire:
            await wire.send(op="hello", token=publisher.token())
            assert await wire.closed() == 4013
        assert (await gateway.http.get("/v1/whoami")).status_code == 200  # by the secret


async def test_a_file_is_read_again(tmp_path: Path, publisher: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(issuer_module, "_ASK_S", -1.0)
    file = tmp_path / "keys.json"
    file.write_bytes(publisher.text())
    issuer = Issuer(str(file))
    assert [key.kid for key in await issuer.keys()] == ["one"]
    publisher.rotate("two")
    file.write_bytes(publisher.text())
    assert [key.kid for key in await issuer.keys(anew=True)] == ["two"]
