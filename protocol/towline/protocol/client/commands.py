"""The commands a client has sent and has no answer to yet.

Promises that a command with its id is sent again on each new socket until its receipt comes, so that a lost
answer never means a lost or a doubled command: the server knows the id. Leaves the socket to `machine`.
"""

from typing import Any, Literal

import msgspec
from msgspec import Struct

from towline.protocol.client.actions import Answered
from towline.protocol.values import JsonObject


class Send(Struct, frozen=True, kw_only=True):
    """A command to send. Unique by `run` and `command_id`; sent again with the same body.

    `wait`: "applied" asks for a second receipt when the outcome is known, at most `timeout_ms` later.
    `not_after`: a time after which it must not be accepted any more.
    """

    run: str
    type: str
    data: JsonObject
    command_id: str
    wait: Literal["applied"] | None = None
    timeout_ms: int | None = None
    not_after: str | None = None


_SETTLED = ("refused", "applied", "rejected")


class Outbox:
    """Commands without a final receipt, in the order in which they were given."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, str], Send] = {}
        self._asked: dict[str, tuple[str, str]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, send: Send) -> None:
        """Raises `ValueError` if the same id waits with another body."""
        key = (send.run, send.command_id)
        if self._waiting.setdefault(key, send) != send:
            raise ValueError(f"the command {send.command_id} of {send.run} already waits with another body")

    def forget(self, run: str, command_id: str) -> None:
        """Sends it no more. It may have been accepted."""
        key = (run, command_id)
        self._waiting.pop(key, None)
        self._asked = {frame_id: asked for frame_id, asked in self._asked.items() if asked != key}

    def unsent(self) -> list[Send]:
        """The commands that this socket has not carried yet."""
        carried = set(self._asked.values())
        return [send for key, send in self._waiting.items() if key not in carried]

    def frame(self, send: Send, frame_id: str) -> JsonObject:
        """The `command` frame, to be sent now under `frame_id`."""
        self._asked[frame_id] = (send.run, send.command_id)
        members: dict[str, Any] = msgspec.to_builtins(send)
        return {"op": "command", "id": frame_id, **{k: v for k, v in members.items() if v is not None}}

    def lose(self) -> None:
        """The socket is gone: what has no final receipt is unsent again."""
        self._asked.clear()

    def knows(self, frame_id: object) -> bool:
        """Whether this socket carried a command under `frame_id` that still waits."""
        return isinstance(frame_id, str) and self._asked.get(frame_id) in self._waiting

    def receive_receipt(self, frame_id: str, receipt: JsonObject) -> Answered:
        """The receipt for a command that `knows` this frame id."""
        key = self._asked[frame_id]
        send = self._waiting[key]
        settled = receipt.get("status") in _SETTLED or bool(receipt.get("timed_out"))
        is_final = settled or send.wait is None
        if is_final:
            self.forget(*key)
        return Answered(send.run, send.command_id, receipt, is_final)
