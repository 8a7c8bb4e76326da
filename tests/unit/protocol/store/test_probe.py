"""Reading a server's name and version, also those that report an older one for old clients."""

import pytest
import redis

from towline.protocol.store.probe import ServerUnreachable, facts_of, is_new_enough, probe, unix_url


@pytest.mark.parametrize(
    ("info", "name", "version", "new_enough"),
    [
        ({"redis_version": "7.0.15"}, "redis", "7.0.15", True),
        ({"redis_version": "8.2.3"}, "redis", "8.2.3", True),
        ({"redis_version": "6.2.14"}, "redis", "6.2.14", False),
        ({"redis_version": "7.2.4", "server_name": "valkey", "valkey_version": "9.1.2"}, "valkey", "9.1.2", True),
        ({"redis_version": "7.2.4", "server_name": "valkey", "valkey_version": "7.2.8"}, "valkey", "7.2.8", False),
        ({"redis_version": "7.2.4", "server_name": "valkey", "valkey_version": "10.0.0"}, "valkey", "10.0.0", True),
        ({}, "redis", "", False),
    ],
)
def test_name_and_version(info: dict[str, str], name: str, version: str, new_enough: bool) -> None:
    facts = facts_of(info)
    assert (facts.name, facts.version, facts.is_new_enough) == (name, version, new_enough)


@pytest.mark.parametrize("version", ["", "unstable", "7", "7.x"])
def test_an_unreadable_version_is_too_old(version: str) -> None:
    assert not is_new_enough("redis", version)


@pytest.mark.parametrize("path", ["/tmp/a.sock", "/tmp/a b%20?c#d@e/é.sock"])
def test_a_socket_path_survives_the_way_through_an_address(path: str) -> None:
    with redis.Redis.from_url(unix_url(path)) as client:
        assert client.connection_pool.connection_kwargs["path"] == path


def test_nobody_at_home() -> None:
    with pytest.raises(ServerUnreachable, match=r"unix:///nowhere/store\.sock"):
        probe("unix:///nowhere/store.sock")
