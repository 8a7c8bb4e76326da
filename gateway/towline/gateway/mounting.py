"""Where the gateway stands for others: at the root of an address, or below a path behind somebody's proxy.

Promises that a gateway which was told its public address answers the same whether the proxy takes the path away or
leaves it on; that a path is compared by whole segments, so `/agents` says nothing about `/agentsx`, nor about a run
named `agents-2`; and that each address which leaves here (a share's link, a `Location`, the page and what it calls, the
descriptions) begins as the caller's own did. Mounted by another application below its `root_path`, the same holds
without a setting. Leaves to `server` which Origins may call.
"""

import re
from html import escape
from typing import Final
from urllib.parse import quote, urlsplit

from starlette.requests import HTTPConnection
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

_SEGMENT: Final = re.compile(r"[A-Za-z0-9_~-][A-Za-z0-9._~-]*")
_OURS: Final = frozenset({"v1", "console"})
"""First segments of our own: below one of these nobody could tell a path with the prefix from one without."""


def check_public_url(text: str) -> str:
    """A public address, without a slash at its end. Raises `ValueError` for what is none."""
    address = urlsplit(text)
    plain = not (address.query or address.fragment or address.username or address.password)
    if address.scheme not in ("http", "https") or not address.hostname or not plain:
        raise ValueError(text)
    _ = address.port  # raises for what is no port
    segments = address.path.strip("/").split("/") if address.path.strip("/") else []
    if not all(_SEGMENT.fullmatch(segment) for segment in segments) or (segments and segments[0] in _OURS):
        raise ValueError(text)
    return "/".join([f"{address.scheme}://{address.netloc}", *segments])


def origin_of(public_url: str) -> str:
    """The Origin of pages at this address, as browsers write it: in small letters, without the usual port."""
    address = urlsplit(public_url)
    usual = {"http": ":80", "https": ":443"}[address.scheme]
    return f"{address.scheme}://{address.netloc.lower().removesuffix(usual)}"


class Mounted:
    """Middleware: everything here is below the path of `public_url`, whatever a proxy made of it."""

    def __init__(self, app: ASGIApp, *, public_url: str | None) -> None:
        self._app = app
        self._root = urlsplit(public_url or "").path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._root or scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        if path == self._root and scope["type"] == "http":
            # What the page names stands beside it, so the page needs the slash.
            await RedirectResponse(f"{self._root}/", 308)(scope, receive, send)
            return
        if not path.startswith(f"{self._root}/"):
            path = self._root + path
        await self._app({**scope, "root_path": self._root, "path": path}, receive, send)


def root_of(connection: HTTPConnection) -> str:
    """What stands before `/v1` in the path of whoever calls, percent-encoded; empty at the root."""
    return quote(connection.scope.get("root_path", "").rstrip("/"))


def base_of(connection: HTTPConnection, public_url: str | None) -> str:
    """The address of the gateway as the caller knows it, without a slash at its end."""
    # Not `base_url`: below a path of another application that is where the other one stands.
    return public_url or str(connection.url.replace(path=root_of(connection), query="", fragment=""))


def page_at(root: str, page: str) -> str:
    """The page, for a root: what it names beside itself is found wherever a proxy serves it."""
    return re.sub(r'(href|src)="(app\.\w+)"', rf'\1="{escape(root)}/\2"', page) if root else page
