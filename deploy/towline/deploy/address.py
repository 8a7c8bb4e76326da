"""Which server `towline run` talks to, and with which credential.

Promises one order: `--url` and `--token`, then TOWLINE_URL and TOWLINE_TOKEN, then what `towline dev` left in
the data folder (`dev.json`, readable only by its owner). Each of the two is found on its own, but the token
of a data folder goes only to the address that stands beside it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

DEFAULT_DATA: Final = Path(".towline")


class NoAddress(Exception):
    """No server or credential is named; the message says how to name one."""


class Address(msgspec.Struct, frozen=True):
    """Where to call, and with what."""

    url: str
    token: str


def find_address(url: str | None, token: str | None, data: Path | None, environment: Mapping[str, str]) -> Address:
    """The server and credential to use. Raises `NoAddress`."""
    url = (url or environment.get("TOWLINE_URL") or "").rstrip("/") or None
    token = token or environment.get("TOWLINE_TOKEN") or None
    if url is not None and not url.startswith(("http://", "https://")):
        raise NoAddress(f"{url!r} is no address: it begins with http:// or https://")
    if url is not None and token is not None:
        return Address(url, token)
    folder = data or Path(environment.get("TOWLINE_DATA") or DEFAULT_DATA)
    local = _local(folder)
    if local is None:
        named = "a token: give --token or set TOWLINE_TOKEN" if url else "a server: give --url and --token"
        raise NoAddress(f"no stack runs in {folder}; start 'towline dev' there, or name {named}")
    if url not in (None, local.url):
        raise NoAddress(f"the token of {folder} is for {local.url}, not for {url}: give --token or set TOWLINE_TOKEN")
    return Address(local.url, token or local.token)


def _local(folder: Path) -> Address | None:
    path = folder / "dev.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=Address)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise NoAddress(f"{path} cannot be read: {error}") from None
