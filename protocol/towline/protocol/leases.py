"""Lease tokens: what a worker over HTTP shows to prove that it holds a run.

Promises that a token opens only for the run and the subject it was made for, and that nobody without the store's
secret can make one. Leaves to the store whether the lease it names is still the run's.
"""

import hashlib
import hmac
import re
from typing import Final

from msgspec import Struct

_TOKEN: Final = re.compile(r"([0-9]{1,15})\.([0-9a-f]{16})\.([0-9]{1,3})\.([0-9a-f]{32})\Z")


class LeaseToken(Struct, frozen=True):
    """The fence of a lease, and how many commits the server made under it before the worker's first."""

    epoch: int
    nonce: str
    before: int = 0


def seal(secret: bytes, run: str, subject: str, token: LeaseToken) -> str:
    """The text of a token, for `subject` on `run`."""
    return f"{_plain(token)}.{_proof(secret, run, subject, token)}"


def unseal(secret: bytes, run: str, subject: str, text: str) -> LeaseToken | None:
    """The token in `text`, or None if it was not made for `subject` on `run`."""
    match = _TOKEN.match(text)
    if match is None:
        return None
    token = LeaseToken(int(match[1]), match[2], int(match[3]))
    return token if hmac.compare_digest(match[4], _proof(secret, run, subject, token)) else None


def _plain(token: LeaseToken) -> str:
    return f"{token.epoch}.{token.nonce}.{token.before}"


def _proof(secret: bytes, run: str, subject: str, token: LeaseToken) -> str:
    told = "\0".join(("lease", run, subject, _plain(token))).encode()
    return hmac.new(secret, told, hashlib.sha256).hexdigest()[:32]
