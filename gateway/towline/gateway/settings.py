"""What a gateway is told when it starts: one frozen value, from code or from the environment.

Promises that a `TOWLINE_GATEWAY_` variable which nobody reads is refused, as is a value that is none: a misspelt
setting that is silently ignored is worse than none. Leaves to the command line which option wins.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from towline.gateway.limits import VARIABLES as LIMITS
from towline.gateway.limits import Allowances
from towline.gateway.proxies import ProxyHeader, trusted
from towline.protocol.limits import HEARTBEAT_MS, HELLO_MS
from towline.protocol.source_paths import allowed_roots
from towline.protocol.store.payloads import URL_VARIABLE, open_payloads
from towline.protocol.tokens import SECRET_VARIABLE, refuse_weak

PREFIX: Final = "TOWLINE_GATEWAY_"


class SettingsError(Exception):
    """A setting is missing or wrong; the message says which, and what to do."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """One gateway.

    `payloads`: where artifacts, uploads and large values lie, a folder or the URL of an object store.
    `public_url`: the address by which clients find it, if a proxy stands before it; may have a path.
    `origins`: browser origins that may connect, compared exactly; None means its own address and the public one.
    `trusted_proxies`: addresses and networks of proxies, and `unix`, that say in `proxy_header` whose requests they
    bring; nobody else is believed.
    `allow_paths`: roots below which `input.source.path` of a new run must lie; empty leaves it to the workers.
    `development`: serve on a store that may lose acknowledged events, and say so loudly.
    `jwt_secret` signs HS256 credentials, `jwks` (a URL or a path) holds the keys of others; one of them is needed.
    `issuer`, `audience`: what `iss` must be and `aud` must hold, if given.
    `drain_ms`: how long sockets are given to leave when the gateway stops. Their clients are told to come back spread
    over `drain_window_ms`, or longer where it takes that to keep to `reconnects_per_s`.
    `metrics_bind`: host and port at which alone `/metrics` is served; None serves it beside everything else.
    `limits`: what callers may ask.
    """

    store_url: str
    jwt_secret: bytes | None
    payloads: Path | str
    host: str = "127.0.0.1"
    port: int = 8480
    socket_path: Path | None = None
    public_url: str | None = None
    origins: tuple[str, ...] | None = None
    trusted_proxies: tuple[str, ...] = ()
    proxy_header: ProxyHeader = "x-forwarded-for"
    allow_paths: tuple[str, ...] = ()
    development: bool = False
    jwks: str | None = None
    issuer: str | None = None
    audience: str | None = None
    heartbeat_ms: int = HEARTBEAT_MS
    hello_ms: int = HELLO_MS
    drain_ms: int = 10_000
    drain_window_ms: int = 10_000
    reconnects_per_s: int = 500
    metrics_bind: tuple[str, int] | None = None
    limits: Allowances = Allowances()


def _number(text: str) -> int:
    number = int(text)
    if not 0 <= number <= 2**31:
        raise ValueError(text)
    return number


def _count(text: str) -> int:
    number = _number(text)
    if number == 0:
        raise ValueError(text)
    return number


def _bind(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    number = _count(port)
    if not colon or not host or number > 65_535:
        raise ValueError(text)
    return host.strip("[]"), number


def _flag(text: str) -> bool:
    return {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}[text.lower()]


def _origins(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _public_url(text: str) -> str:
    # Only here: who reads settings need not load what serves.
    from towline.gateway.mounting import check_public_url

    return check_public_url(text)


def _proxy_header(text: str) -> ProxyHeader:
    known: dict[str, ProxyHeader] = {"x-forwarded-for": "x-forwarded-for", "forwarded": "forwarded"}
    return known[text.lower()]


def _word(text: str) -> str:
    if not text:
        raise ValueError(text)
    return text


def _key_set(text: str) -> str:
    # Keys that came in the clear over a network are anybody's keys.
    address = urlsplit(text)
    if address.scheme in ("http", "https"):
        is_near = address.hostname in ("127.0.0.1", "localhost", "::1")
        if not address.hostname or (address.scheme == "http" and not is_near):
            raise ValueError(text)
    return _word(text)


_VARIABLES: Final[Mapping[str, tuple[str, Callable[[str], Any], str]]] = {
    "HOST": ("host", str, "address to listen on"),
    "PORT": ("port", _number, "port to listen on; 0 takes a free one"),
    "SOCKET_PATH": ("socket_path", Path, "unix socket to listen on, instead of host and port"),
    "PUBLIC_URL": ("public_url", _public_url, "http or https address of the gateway for its clients"),
    "ORIGINS": ("origins", _origins, "browser origins that may connect, divided by commas"),
    "TRUSTED_PROXIES": ("trusted_proxies", trusted, "addresses and networks of proxies, divided by commas, and unix"),
    "PROXY_HEADER": ("proxy_header", _proxy_header, "x-forwarded-for or forwarded, whichever the proxies write"),
    "DEVELOPMENT": ("development", _flag, "1: serve on a store that may lose events"),
    "JWKS": ("jwks", _key_set, "https: URL or path of a JWK Set with the issuer's public keys"),
    "ISSUER": ("issuer", _word, "iss of the credentials that are taken"),
    "AUDIENCE": ("audience", _word, "aud of the credentials that are taken"),
    "HEARTBEAT_MS": ("heartbeat_ms", _number, "milliseconds between heartbeats of a quiet socket"),
    "HELLO_MS": ("hello_ms", _number, "milliseconds in which a socket must say hello"),
    "DRAIN_MS": ("drain_ms", _number, "milliseconds that sockets are given to leave"),
    "DRAIN_WINDOW_MS": ("drain_window_ms", _number, "milliseconds over which clients come back after a drain"),
    "RECONNECTS_PER_S": ("reconnects_per_s", _count, "how many clients a second are to come back after a drain"),
    "METRICS_BIND": ("metrics_bind", _bind, "host:port at which alone /metrics is served"),
    **{name: (name.lower(), _number if name == "ADDRESS_FACTOR" else _count, text) for name, text in LIMITS.items()},
}


def from_environment(environment: Mapping[str, str] = os.environ, **given: Any) -> Settings:
    """The settings that the environment names; `given` wins over it (None counts as not given).

    Raises `SettingsError`.
    """
    values: dict[str, Any] = {"allow_paths": allowed_roots(environment)}
    if url := environment.get("TOWLINE_STORE_URL"):
        values["store_url"] = url
    if secret := environment.get(SECRET_VARIABLE):
        values["jwt_secret"] = secret.encode()
    if data := environment.get("TOWLINE_DATA"):
        values["payloads"] = Path(data) / "payloads"
    if where := environment.get(URL_VARIABLE):
        values["payloads"] = where
    limits: dict[str, Any] = {}
    for name, text in environment.items():
        if not name.startswith(PREFIX):
            continue
        row = _VARIABLES.get(name.removeprefix(PREFIX))
        if row is None:
            known = ", ".join(PREFIX + known for known in _VARIABLES)
            raise SettingsError(f"{name} is no setting of the gateway: unset it; there are {known}")
        field, read, meaning = row
        try:
            (limits if name.removeprefix(PREFIX) in LIMITS else values)[field] = read(text)
        except (ValueError, KeyError):
            raise SettingsError(f"{name}={text!r} is not valid; it is the {meaning}") from None
    values["limits"] = Allowances(**limits)
    values.update({name: value for name, value in given.items() if value is not None})
    needed = {"store_url": "TOWLINE_STORE_URL", "payloads": "TOWLINE_DATA"}
    if "jwks" not in values:
        needed["jwt_secret"] = SECRET_VARIABLE
    for field, variable in needed.items():
        if field not in values:
            raise SettingsError(f"{variable} is not set, and nothing else says it")
    where = values["payloads"]
    if isinstance(where, str):
        try:
            open_payloads(where)
        except ValueError as error:
            raise SettingsError(f"{URL_VARIABLE}={where!r} cannot be used: {error}") from None
    try:
        if values.setdefault("jwt_secret", None) is not None:
            refuse_weak(values["jwt_secret"])
    except ValueError as error:
        raise SettingsError(str(error)) from None
    return Settings(**values)
