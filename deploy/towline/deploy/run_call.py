"""One command of `towline run`: a client for it, and every failure as one line and an exit code.

Promises that whatever goes wrong leaves one line on stderr, with its remedy, and the exit code that the table
in `cli_run` names. Leaves what the commands do to `cli_run`.
"""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from towline.deploy import words
from towline.deploy.address import NoAddress, find_address
from towline.protocol.client.connect import Client
from towline.protocol.client.failures import ClientError, SubscriptionOver, Unreachable
from towline.protocol.cursor import BadCursor
from towline.protocol.errors import ProblemError

ENDED_BADLY: Final = 1
USAGE: Final = 2
NOT_FOUND: Final = 3
REFUSED: Final = 4
UNAVAILABLE: Final = 5
NOT_ALLOWED: Final = 6
INTERRUPTED: Final = 130

EXIT_CODES: Final = {
    "bad_request": USAGE,
    "too_large": USAGE,
    "unsupported_media": USAGE,
    "not_found": NOT_FOUND,
    "gone": NOT_FOUND,
    "unauthenticated": NOT_ALLOWED,
    "forbidden": NOT_ALLOWED,
    "rate_limited": UNAVAILABLE,
    "overloaded": UNAVAILABLE,
    "unavailable": UNAVAILABLE,
    "internal": UNAVAILABLE,
}
"""Problem code → exit code; every other problem is `REFUSED`."""

REMEDIES: Final = {
    "not_found": "see 'towline run list' for what there is",
    "unauthenticated": "get a token with 'towline token', or restart 'towline dev'",
    "already_decided": "see 'towline run show' for what was decided",
    "digest_mismatch": "look at it again: what was asked has changed",
    "unavailable": "nothing was accepted; try again",
    "overloaded": "nothing was accepted; try again",
}

_PATIENCE_S: Final = 5.0


class Refusal(Exception):
    """This command cannot go on; one line for people, with the remedy."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def call(url: str | None, token: str | None, data: Path | None, work: Callable[[Client], Awaitable[int]]) -> int:
    """Runs `work` with a client and turns every failure into one line and an exit code."""

    async def connected() -> int:
        address = find_address(url, token, data, os.environ)
        async with Client(address.url, address.token, patience_s=_PATIENCE_S, name="towline-cli") as client:
            return await work(client)

    try:
        return asyncio.run(connected())
    except ProblemError as error:
        problem = error.problem
        where = f"{problem.field}: " if problem.field and problem.field not in problem.detail else ""
        remedy = REMEDIES.get(problem.code)
        return fail(
            f"{where}{problem.detail}" + (f" ({remedy})" if remedy else ""), EXIT_CODES.get(problem.code, REFUSED)
        )
    except Unreachable as error:
        return fail(f"{error}; is it running? start it with 'towline dev', or name another with --url", UNAVAILABLE)
    except SubscriptionOver as error:
        return fail(str(error), NOT_FOUND if error.code in ("revoked", "purged") else UNAVAILABLE)
    except ClientError as error:
        return fail(str(error), REFUSED)
    except (NoAddress, BadCursor) as error:
        return fail(str(error), USAGE)
    except Refusal as error:
        return fail(str(error), error.code)


def fail(message: str, code: int) -> int:
    """Says why on stderr, in one line; returns `code`."""
    print(f"towline: {words.plain(message, 2000)}", file=sys.stderr)
    return code
