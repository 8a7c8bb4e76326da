"""Whose address a request comes from, when a proxy stands before the gateway.

Promises that nobody names their own address: what a header says counts only as far as proxies that the settings name
wrote it. Read from the right, where the nearest proxy writes, the first address that is none of theirs is the
caller's; what stands left of it is the caller's own word. One header is read, the one that the proxies write: a proxy
that writes one of the two lets the other through as it came. Leaves what an address is used for to `limits`.
"""

import ipaddress
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

ProxyHeader = Literal["x-forwarded-for", "forwarded"]
UNIX: Final = "unix"
"""Stands for whoever comes over a unix socket."""

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[,;]')
_MOST: Final = 64
"""More hops than this are no proxies' work."""


def trusted(text: str) -> tuple[str, ...]:
    """Addresses and networks, divided by commas, and `unix`. Raises `ValueError` for what is none."""
    parts = tuple(part.strip() for part in text.split(",") if part.strip())
    for part in parts:
        if part != UNIX:
            ipaddress.ip_network(part)
    return parts


class Proxies:
    """The proxies of one gateway."""

    def __init__(self, trusted: Sequence[str], header: ProxyHeader = "x-forwarded-for") -> None:
        self._networks = [ipaddress.ip_network(each) for each in trusted if each != UNIX]
        self._trusts_unix = UNIX in trusted
        self._name = header.encode()

    def client_of(self, scope: Mapping[str, Any]) -> object:
        """ASGI's `client` of who really calls; that of the connection where no trusted proxy says otherwise."""
        client = scope.get("client")
        host = client[0] if client else ""
        if not (self._is_ours(_parsed(host)) if host else self._trusts_unix):
            return client
        named = b",".join(value for name, value in scope["headers"] if name == self._name).decode("latin-1")
        hops = list(_forwarded(named) if self._name == b"forwarded" else named.split(","))
        for hop in reversed(hops[-_MOST:]):
            address = _parsed(hop.strip())
            if address is None:
                break  # nobody's address: who wrote it is the nearest that is known
            client = (str(address), 0)
            if not self._is_ours(address):
                break
        return client

    def _is_ours(self, address: _Address | None) -> bool:
        return address is not None and any(address in network for network in self._networks)


def _forwarded(text: str) -> Iterator[str]:
    """The `for` of each hop (RFC 7239); empty where a hop has none, or one that cannot be read."""
    start, named = 0, list[str]()
    for mark, end in [*((m[0], m.start()) for m in _TOKEN.finditer(text) if m[0] in ",;"), (",", len(text))]:
        name, _, value = text[start:end].strip().partition("=")
        start = end + 1
        if name.lower() == "for":
            named.append(value.strip('"'))
        if mark == ",":
            yield named[0] if len(named) == 1 else ""
            named = []


def _parsed(text: str) -> _Address | None:
    """An address, with or without a port; IPv4 also where it is written as IPv6."""
    host = text.partition("%")[0]
    if host.startswith("["):
        host = host[1:].partition("]")[0]
    elif host.count(":") == 1:
        host = host.partition(":")[0]
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    return address.ipv4_mapped or address if isinstance(address, ipaddress.IPv6Address) else address
