"""A store that would lose acknowledged events is refused, and the setting to change is named."""

import logging
import socket
from collections.abc import AsyncIterator, Iterator

import pytest
from redis.asyncio import Redis

from tests.support.server import StoreServer
from towline.protocol.store.durability import Finding, NotDurable, check, enforce


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    """A server whose settings these tests spoil; each test begins with good ones."""
    with StoreServer(tmp_path_factory.mktemp("durability"), durable=True) as server:
        yield server


@pytest.fixture
async def client(server: StoreServer) -> AsyncIterator[Redis]:
    async with Redis.from_url(server.url) as client:
        await client.config_set("appendonly", "yes")
        await client.config_set("appendfsync", "always")
        await client.config_set("no-appendfsync-on-rewrite", "no")
        await client.config_set("maxmemory-policy", "noeviction")
        await client.config_set("maxmemory", str(1024**3))
        yield client


async def test_the_embedded_store_has_no_findings(client: Redis) -> None:
    assert await check(client) == []
    assert await enforce(client) == []


@pytest.mark.parametrize(
    ("setting", "value", "code", "remedy"),
    [
        ("appendonly", "no", "appendonly", "appendonly yes"),
        ("appendfsync", "no", "appendfsync", "appendfsync always"),
        ("maxmemory-policy", "allkeys-lru", "eviction", "maxmemory-policy noeviction"),
        ("maxmemory-policy", "volatile-ttl", "eviction", "maxmemory-policy noeviction"),
    ],
)
async def test_what_loses_data_is_refused(
    client: Redis, caplog: pytest.LogCaptureFixture, setting: str, value: str, code: str, remedy: str
) -> None:
    await client.config_set(setting, value)
    (finding,) = await check(client)
    assert (finding.code, finding.severity) == (code, "refuse")
    assert value in finding.text
    assert remedy in finding.remedy
    with pytest.raises(NotDurable, match=remedy) as refusal:
        await enforce(client)
    assert refusal.value.findings == [finding]

    assert [found.severity for found in await check(client, development=True)] == ["warn"]
    with caplog.at_level(logging.WARNING, logger="towline.store"):
        assert await enforce(client, development=True) == [finding]
    assert [(record.levelname, remedy in record.message) for record in caplog.records] == [("ERROR", True)]


@pytest.mark.parametrize(
    ("setting", "value", "code"),
    [
        ("appendfsync", "everysec", "appendfsync"),
        ("no-appendfsync-on-rewrite", "yes", "rewrite_fsync"),
        ("maxmemory", "0", "maxmemory"),
    ],
)
async def test_what_only_widens_a_window_is_a_warning(
    client: Redis, caplog: pytest.LogCaptureFixture, setting: str, value: str, code: str
) -> None:
    await client.config_set(setting, value)
    with caplog.at_level(logging.WARNING, logger="towline.store"):
        (finding,) = await enforce(client)
    assert (finding.code, finding.severity) == (code, "warn")
    assert [record.levelname for record in caplog.records] == ["WARNING"]


async def test_all_that_is_wrong_is_said_at_once(client: Redis) -> None:
    await client.config_set("maxmemory", "0")
    await client.config_set("appendonly", "no")
    await client.config_set("maxmemory-policy", "allkeys-lfu")
    findings = await check(client)
    assert [(found.code, found.severity) for found in findings] == [
        ("appendonly", "refuse"),
        ("eviction", "refuse"),
        ("maxmemory", "warn"),
    ]


async def test_a_replica_is_refused(client: Redis) -> None:
    await client.replicaof("127.0.0.1", "1")
    try:
        assert "replica" in [found.code for found in await check(client)]
    finally:
        await client.replicaof("NO", "ONE")


async def test_a_store_on_the_network_that_asks_nobody_who_they_are_is_refused(
    server: StoreServer, client: Redis
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    await client.config_set("port", port)
    try:
        async with Redis.from_url(f"redis://127.0.0.1:{port}") as anyone:
            (finding,) = await check(anyone)
            assert (finding.code, finding.severity) == ("no_auth", "refuse")
            with pytest.raises(NotDurable, match="requirepass"):
                await enforce(anyone)
            assert [found.code for found in await enforce(anyone, development=True)] == ["no_auth"]
        await client.acl_setuser("towline", enabled=True, passwords=["+secret"], keys=["*"], commands=["+@all"])
        async with Redis.from_url(f"redis://towline:secret@127.0.0.1:{port}") as known:
            assert await check(known) == []
    finally:
        await client.config_set("port", 0)
        await client.acl_deluser("towline")


async def test_a_denied_config_is_a_finding_that_says_so(server: StoreServer, client: Redis) -> None:
    await client.acl_setuser("plain", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-config"], reset=True)
    async with Redis.from_url(server.url, username="plain", password="any") as plain:
        (finding,) = await enforce(plain)
    assert finding.code == "config_denied"
    assert finding.severity == "warn"
    assert "+config|get" in finding.remedy


def test_a_finding_reads_as_two_sentences() -> None:
    assert str(Finding("code", "warn", "It is so", "Do this")) == "It is so. Do this."
