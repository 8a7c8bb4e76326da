"""Whether a server keeps what it acknowledges: its settings, read and judged at start-up.

Promises that `enforce` lets no process start on a store that loses acknowledged events: append-only log off, a
policy that evicts keys, a replica, a server too old; nor on one that asks nobody who they are. What only widens
a window is a warning. Each finding names the setting to change. Reads INFO and CONFIG GET, changes nothing. Who
may relax this (development mode) is the caller's decision; the embedded store is started so that nothing is
found.
"""

import logging
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
import redis.exceptions
from redis.asyncio import Redis

from towline.protocol.store.connection import open_client, translated
from towline.protocol.store.probe import facts_of, too_old

_log = logging.getLogger("towline.store")

Severity = Literal["refuse", "warn"]


class Finding(msgspec.Struct, frozen=True):
    """One thing wrong with a server. `remedy` names the setting and its value."""

    code: str
    severity: Severity
    text: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.text}. {self.remedy}."


class NotDurable(Exception):
    """The store would lose what it acknowledged; `findings` are the reasons, all of severity `refuse`."""

    def __init__(self, findings: list[Finding]) -> None:
        self.findings = findings
        super().__init__("The store is not fit for use: " + " ".join(map(str, findings)))


async def check(client: Redis, *, development: bool = False) -> list[Finding]:
    """Reads the server behind `client` and returns what is wrong with it, the worst first.

    With `development`, what would refuse is returned as a warning. Raises redis-py's errors when the
    server does not answer; a denied CONFIG GET is a finding, not an error.
    """
    info: dict[str, Any] = await client.info("all")
    settings = await _settings(client)
    findings = [*_of_address(client), *_of_server(info), *_of_log(info, settings), *_of_memory(info)]
    if development:
        findings = [msgspec.structs.replace(finding, severity="warn") for finding in findings]
    return sorted(findings, key=lambda finding: finding.severity)


async def enforce(client: Redis, *, development: bool = False) -> list[Finding]:
    """Refuses a store that is not durable, logs the rest, and returns the findings that did not refuse.

    Raises `NotDurable`, unless `development`: then the same findings are logged as errors and let pass.
    """
    findings = await check(client)
    refusals = [finding for finding in findings if finding.severity == "refuse"]
    if refusals and not development:
        raise NotDurable(refusals)
    for finding in findings:
        if finding.severity == "refuse":
            _log.error("development mode: this store may lose acknowledged events: %s", finding)
        else:
            _log.warning("%s", finding)
    return findings


async def enforce_at(url: str, *, development: bool = False) -> list[Finding]:
    """`enforce` for the server at `url`, over a connection of its own. Raises `StoreUnavailable` besides."""
    async with open_client(url) as client:
        with translated():
            return await enforce(client, development=development)


async def _settings(client: Redis) -> Mapping[str, str] | None:
    """The settings that INFO does not show, or None when the server does not let us read them."""
    try:
        answer = await client.config_get("appendfsync", "no-appendfsync-on-rewrite")
    except redis.exceptions.ResponseError:
        # NOPERM of an access list, or a managed service that took CONFIG away.
        return None
    return {_text(name): _text(value) for name, value in answer.items()}


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _of_address(client: Redis) -> list[Finding]:
    """Over a network the store is everybody's who reaches its port, unless it asks who they are."""
    given = client.connection_pool.connection_kwargs
    if "path" in given or any(given.get(name) for name in ("password", "credential_provider", "ssl_certfile")):
        return []
    return [
        Finding(
            "no_auth",
            "refuse",
            "The store is reached over TCP without a password, so anybody who reaches it can read and write every run",
            "Set 'requirepass' or an ACL user and name it in the address, or connect over a unix socket",
        )
    ]


def _of_server(info: Mapping[str, Any]) -> list[Finding]:
    facts, found = facts_of(info), list[Finding]()
    if not facts.is_new_enough:
        found.append(Finding("version", "refuse", too_old(facts.name, facts.version), "Upgrade the server"))
    if info.get("role") != "master":
        found.append(
            Finding(
                "replica",
                "refuse",
                "The server is a replica: what it is told may be lost or refused",
                "Connect to the primary",
            )
        )
    if int(info.get("cluster_enabled", 0)):
        found.append(
            Finding(
                "cluster",
                "refuse",
                "The server is a node of a cluster, and the address is that of one server",
                "Give the address of a server with 'cluster-enabled no'",
            )
        )
    return found


def _of_log(info: Mapping[str, Any], settings: Mapping[str, str] | None) -> list[Finding]:
    if not int(info.get("aof_enabled", 0)):
        return [
            Finding(
                "appendonly",
                "refuse",
                "The append-only log is off (appendonly no): a restart loses every run since the last save",
                "Set 'appendonly yes'",
            )
        ]
    found = list[Finding]()
    if info.get("aof_last_write_status", "ok") != "ok":
        found.append(
            Finding(
                "log_write",
                "refuse",
                "The server could not write its append-only log",
                "Free space on its disk, then look at the server's own log",
            )
        )
    if settings is None:
        found.append(
            Finding(
                "config_denied",
                "warn",
                "CONFIG GET is not allowed, so the value of appendfsync is unknown",
                "Allow '+config|get' to this user, or make sure of 'appendfsync always' yourself",
            )
        )
        return found
    match settings.get("appendfsync"):
        case "always":
            pass
        case "everysec":
            found.append(
                Finding(
                    "appendfsync",
                    "warn",
                    "With 'appendfsync everysec' a power cut loses up to a second or two of acknowledged events",
                    "Set 'appendfsync always' to lose none",
                )
            )
        case other:
            found.append(
                Finding(
                    "appendfsync",
                    "refuse",
                    f"With 'appendfsync {other}' a power cut loses whatever the kernel had not yet written",
                    "Set 'appendfsync always'",
                )
            )
    if settings.get("no-appendfsync-on-rewrite") == "yes":
        found.append(
            Finding(
                "rewrite_fsync",
                "warn",
                "While the log is rewritten nothing is synced (no-appendfsync-on-rewrite yes)",
                "Set 'no-appendfsync-on-rewrite no'",
            )
        )
    return found


def _of_memory(info: Mapping[str, Any]) -> list[Finding]:
    found = list[Finding]()
    policy = str(info.get("maxmemory_policy", "unknown"))
    if policy != "noeviction":
        found.append(
            Finding(
                "eviction",
                "refuse",
                f"The policy '{policy}' drops keys when memory is full: runs would vanish",
                "Set 'maxmemory-policy noeviction'",
            )
        )
    if not int(info.get("maxmemory", 0)):
        found.append(
            Finding(
                "maxmemory",
                "warn",
                "No limit of memory is set: the system may kill the server instead of new runs being refused",
                "Set 'maxmemory' to at most 60 % of the machine's memory",
            )
        )
    return found
