"""WebSocket close codes: ranges decide whether a client comes back, so an old client handles a new code.

4000 to 4499 and any code not listed: reconnect with back-off and honour `retry_ms`. 4500 to 4999 and the
protocol errors in `FINAL`: do not.
"""

from enum import IntEnum
from typing import Final


class CloseCode(IntEnum):
    """Why a socket ends; the comment is what the client does."""

    DRAIN = 4000  # reconnect after retry_ms
    HEARTBEAT_LOST = 4001  # closed by a client that heard nothing; reconnect
    CREDENTIAL_ENDED = 4005  # get a new credential first, then reconnect
    TOO_SLOW = 4008  # reconnect, resume from the cursor
    LOST_PLACE = 4010  # reconnect and subscribe from the cursors
    OVERLOADED = 4013  # reconnect after retry_ms
    RATE_LIMITED = 4029  # reconnect after retry_ms
    NOT_A_FRAME = 4500  # a bug of the client
    BAD_CREDENTIAL = 4501  # sign in again
    FORBIDDEN = 4503  # Origin not allowed, or no rights left
    TOO_MANY_CONNECTIONS = 4505
    NO_SUBPROTOCOL = 4506
    INVALID_DATA = 1007
    TOO_LARGE = 1009


FINAL: Final = frozenset({1002, 1003, 1007, 1008, 1009, 1010})


def may_reconnect(code: int) -> bool:
    """Whether a client that was closed with `code` reconnects."""
    return not (4500 <= code <= 4999 or code in FINAL)
