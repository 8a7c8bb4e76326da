"""What a server says of itself: name, version, process, role. The version rule lives here.

Promises one blocking question with a deadline and no retries, for whoever starts or stops a server
(`towline.deploy.embedded`) and for a person at a terminal. Leaves judging its settings to `durability`.
"""

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

import msgspec

OLDEST: Final[Mapping[str, tuple[int, int]]] = {"valkey": (8, 0), "redis": (7, 0)}
"""The oldest release of each server that runs our scripts and survives a restart as we need it."""


class ServerUnreachable(Exception):
    """Nothing answered at the address in time; the message says what was tried."""


class ServerFacts(msgspec.Struct, frozen=True):
    """One look at a server. `is_loading` means that it reads its log and serves nobody yet."""

    name: str
    version: str
    process_id: int
    config_file: str
    is_loading: bool

    @property
    def is_new_enough(self) -> bool:
        """Whether Towline may run on it; a server of an unknown name is held to Redis's number."""
        return is_new_enough(self.name, self.version)


def is_new_enough(name: str, version: str) -> bool:
    """Compares `9.1.2` of `valkey` or `7.0.15` of `redis` with OLDEST; an unreadable version is too old."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return match is not None and (int(match[1]), int(match[2])) >= OLDEST.get(name, OLDEST["redis"])


def too_old(name: str, version: str) -> str:
    """The sentence for a server that is not new enough."""
    return f"{name} {version} is too old; Towline needs Redis 7.0 or newer, or Valkey 8 or newer"


def facts_of(info: Mapping[str, Any]) -> ServerFacts:
    """Reads the answer of INFO (sections `server` and `persistence`) as redis-py parses it."""
    # Valkey reports a fixed redis_version for old clients; its own number stands beside it.
    name = str(info.get("server_name") or "redis")
    version = str(info.get(f"{name}_version") or info.get("redis_version") or "")
    return ServerFacts(
        name=name,
        version=version,
        process_id=int(info.get("process_id", 0)),
        config_file=str(info.get("config_file", "")),
        # `loading` is missing when the caller asked for other sections only.
        is_loading=bool(int(info.get("loading", 0))),
    )


def unix_url(socket_path: str) -> str:
    """The address of a unix socket in the form that `redis.from_url` reads."""
    return "unix://" + quote(socket_path)


def probe(url: str, *, timeout_s: float = 1.0) -> ServerFacts:
    """Asks the server at `url` once. Raises `ServerUnreachable` when no answer came within `timeout_s`."""
    import redis  # here, since whoever only compares versions or names an address need not wait for it
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    client = redis.Redis.from_url(
        url,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        retry=Retry(NoBackoff(), 0),
    )
    try:
        # Two calls: several sections in one INFO came with 7.0, and a server may be older than that.
        info: dict[str, Any] = {**client.info("server"), **client.info("persistence")}
    except (redis.RedisError, OSError) as error:
        raise ServerUnreachable(f"no answer from {url}: {error}") from error
    finally:
        client.close()
    return facts_of(info)
