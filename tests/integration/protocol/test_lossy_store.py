"""A real server behind a line that loses answers: what redis-py alone would do twice is done once.

A call whose answer was lost was done. redis-py repeats it silently, so a plain append would stand in the log twice
(49 of 1,000 did when this was measured); commits carry a number, and none does.
"""

import asyncio
import random
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from redis.exceptions import ConnectionError as RedisConnectionError

from tests.support.lab import note, open_lab
from tests.support.line import Line
from tests.support.store_peer import Peer
from towline.protocol.store import api
from towline.protocol.store.connection import open_client, open_multiplexed

pytestmark = pytest.mark.store


async def until_answered(call: Any) -> Any:
    while True:
        try:
            return await call()
        except (api.StoreUnavailable, RedisConnectionError):
            continue


async def test_an_answer_that_is_lost_is_not_an_append_that_is_doubled(redis_url: str, tmp_path: Path) -> None:
    async with Line(tmp_path / "line", redis_url, loss=0.0).open() as line, open_lab(line.url) as lab:
        leases = [await lab.held(f"r{number}") for number in range(10)]
        line.loss = 0.2

        async def hold(lease: api.Claimed) -> None:
            for number in range(1, 51):
                commit = lab.commit(lease, number, note(f"{lease.run}/{number}"))
                done = await until_answered(lambda commit=commit: lab.store.commit(commit))
                assert done.first_seq == number + 1

        await asyncio.gather(*(hold(lease) for lease in leases))
        assert line.lost > 5
        line.loss = 0.0
        for lease in leases:
            texts = [entry.event().data.get("text") for entry in await lab.log(lease.run)]
            assert texts[1:] == [f"{lease.run}/{number}" for number in range(1, 51)]


async def test_a_plain_append_would_be(redis_url: str, tmp_path: Path) -> None:
    """So the test above is able to find what it looks for."""
    async with Line(tmp_path / "line", redis_url, loss=0.1).open() as line:
        client: Any = open_multiplexed(line.url)
        for number in range(200):
            await until_answered(lambda number=number: client.rpush("list", number))
        assert await client.llen("list") > 200
        await client.aclose()


async def test_callers_that_give_up_cost_no_connection_and_mix_up_no_answers(redis_url: str) -> None:
    client: Any = open_multiplexed(redis_url)
    chance = random.Random(3)
    async with open_client(redis_url) as raw:
        await client.get("k")
        before = [each["id"] for each in await raw.client_list()]
        given_up = 0

        async def caller(number: int) -> None:
            nonlocal given_up
            for turn in range(30):
                asking = asyncio.ensure_future(client.echo(f"{number}/{turn}"))
                if chance.random() < 0.8:
                    for _ in range(chance.randrange(5)):
                        await asyncio.sleep(0)
                    asking.cancel()
                try:
                    assert await asking == f"{number}/{turn}".encode()
                except asyncio.CancelledError:
                    given_up += 1

        await asyncio.gather(*(caller(number) for number in range(100)))
        assert given_up > 1_000
        assert [each["id"] for each in await raw.client_list()] == before
    await client.aclose()


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for localhost that vouches for itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate_file, key_file = folder / "certificate.pem", folder / "key.pem"
    certificate_file.write_bytes(made.public_bytes(Encoding.PEM))
    key_file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return certificate_file, key_file


async def test_a_shared_connection_may_be_encrypted_and_is_encrypted_again_after_a_loss(tmp_path: Path) -> None:
    certificate_file, key_file = certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate_file, key_file)
    peer = Peer(tmp_path / "unused")
    server = await asyncio.start_server(peer._talk, "localhost", 0, ssl=context)
    address = f"rediss://localhost:{server.sockets[0].getsockname()[1]}"
    client: Any = open_multiplexed(f"{address}?ssl_ca_certs={certificate_file}")
    stranger: Any = open_multiplexed(address)
    try:
        for connection in (1, 2):
            answers = await asyncio.gather(*(client.echo(f"{number}") for number in range(50)))
            assert answers == [b"%d" % number for number in range(50)]
            assert len(peer.lines) == connection
            peer.lines[-1].hang_up()
            await asyncio.sleep(0)
        with pytest.raises(RedisConnectionError, match="certificate"):
            await stranger.echo("x")
    finally:
        await client.aclose()
        await stranger.aclose()
        server.close()
        await server.wait_closed()
