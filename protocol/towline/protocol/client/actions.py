"""What the client machine says: orders to the shell that holds the socket, and news for the application.

Promises small frozen values and nothing else. `machine` emits them in the order in which they must be carried
out and told.
"""

from typing import Literal

from msgspec import Struct

from towline.protocol.client.views import SeenEvent
from towline.protocol.values import JsonObject

Recovery = Literal["resumed", "snapshot", "reset"]


class Connect(Struct, frozen=True):
    """Open a socket; then report `receive_opened`, or `receive_closed` if it could not be had."""


class SendText(Struct, frozen=True):
    """Send one text frame."""

    text: str


class CloseSocket(Struct, frozen=True):
    """Close the socket with this code; then report `receive_closed`."""

    code: int
    reason: str


class Placed(Struct, frozen=True, kw_only=True):
    """The server has placed a subscription; events follow from `cursor`.

    `reset`: drop all that is held of the run, its history is another one. `snapshot`: the events of `lost`
    (gone for good) or `skipped` (readable by pages), both inclusive, will not come; `projection` holds what
    they amount to. `resumed`: nothing is missing.
    """

    run: str
    recovery: Recovery
    cursor: str
    code: str | None = None
    lost: tuple[int, int] | None = None
    skipped: tuple[int, int] | None = None
    projection: JsonObject = {}


class Received(Struct, frozen=True):
    """Events that follow each other and what was handed out before. Keep `cursor` once all are processed."""

    run: str
    events: tuple[SeenEvent, ...]
    cursor: str
    replay: bool


class Live(Struct, frozen=True):
    """All stored events have been handed out; what comes now is new. Told again after each reconnect."""

    run: str
    cursor: str


class Ended(Struct, frozen=True):
    """The run has ended, its terminal event was handed out, the subscription is over."""

    run: str
    cursor: str
    status: str


class Dropped(Struct, frozen=True):
    """The subscription is over although the run may go on; the machine will not ask again.

    `code`: `revoked` or `purged`, or that of `problem`, such as `not_found`.
    """

    run: str
    code: str
    problem: JsonObject | None = None


class Delta(Struct, frozen=True):
    """Unfinished text, outside the log: the frame as it came."""

    run: str
    fields: JsonObject


class Answered(Struct, frozen=True):
    """A receipt. `is_final`: no other will come for this command."""

    run: str
    command_id: str
    receipt: JsonObject
    is_final: bool


class CredentialNeeded(Struct, frozen=True):
    """Give a fresh token with `use_token`: until `deadline`, or, if that is None, before anything goes on."""

    deadline: str | None


class Closed(Struct, frozen=True):
    """The connection is over and will not come back by itself. `code` is the socket's."""

    code: int
    reason: str


Order = Connect | SendText | CloseSocket
News = Placed | Received | Live | Ended | Dropped | Delta | Answered | CredentialNeeded | Closed
Action = Order | News
