"""One GET to a gateway on this machine, for whoever waits for it: the supervisor, the doctor.

Promises an answer and no exception: status 0 when nobody answered in time. No proxy of the environment is used,
since the address is our own. Clients of runs use `protocol.client`.
"""

import http.client
import json
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

_MOST_BYTES: Final = 8 * 1024**2
"""More than a page of events has."""


class LocalAnswer(msgspec.Struct, frozen=True):
    """`status` 0 means no answer; `body` is None when it was no JSON."""

    status: int
    body: Any = None


def get_json(url: str, path: str, *, token: str | None = None, timeout_s: float = 2.0) -> LocalAnswer:
    """Asks `url` + `path` once. Blocking."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
        response = connection.getresponse()
        text = response.read(_MOST_BYTES)
    except (OSError, http.client.HTTPException):
        return LocalAnswer(0)
    finally:
        connection.close()
    try:
        return LocalAnswer(response.status, json.loads(text))
    except ValueError:
        return LocalAnswer(response.status)
