"""What a client holds in its hands: events and Runs, as the server sent them, with names on the common fields.

Promises never to fail on something new: an unknown event type, field or enumerated value is kept and handed on
(`fields` is the whole JSON object). Leaves the meaning of fields to the contract. Typed events, for code that
lives beside the log, stand in `towline.protocol.events`.
"""

from typing import Any

import msgspec
from msgspec import Struct

from towline.protocol.values import JsonObject


class SeenEvent(Struct, frozen=True):
    """One event of a run. `actor["id"]` is None on a share link; `data` is None where it is redacted.

    `cursor` is the resume point after this event, and None inside a batch: resume points lie between batches.
    """

    run: str
    seq: int
    ts: str
    type: str
    fields: JsonObject
    actor: JsonObject = {}
    data: Any = None
    ref: str | None = None
    cause: int | None = None
    redacted: bool = False
    cursor: str | None = None

    @classmethod
    def of(cls, run: str, fields: JsonObject, cursor: str | None = None) -> "SeenEvent":
        """The event in `fields`. Raises `msgspec.ValidationError` if it is no envelope."""
        return msgspec.convert({**fields, "run": run, "fields": fields, "cursor": cursor}, cls)


class SeenRun(Struct, frozen=True):
    """A Run as the caller may read it. What stands in `redacted` is null for lack of rights, not for lack of a
    value."""

    id: str
    status: str
    last_seq: int
    cursor: str
    fields: JsonObject
    workflow: str | None = None
    owner: str | None = None
    headline: str | None = None
    summary: str | None = None
    status_detail: JsonObject | None = None
    stopping: JsonObject | None = None
    plan: list[JsonObject] | None = None
    waiting_on: list[JsonObject] = []
    blockers: list[JsonObject] = []
    artifacts: int | None = None
    outcome: JsonObject | None = None
    role: str | None = None
    actions: list[JsonObject] = []
    redacted: list[str] = []
    worker: JsonObject | None = None
    created_at: str | None = None
    updated_at: str | None = None
    ended_at: str | None = None

    @classmethod
    def of(cls, fields: JsonObject) -> "SeenRun":
        """The Run in `fields`. Raises `msgspec.ValidationError` if it is none."""
        return msgspec.convert({**fields, "fields": fields}, cls)

    @property
    def is_terminal(self) -> bool:
        return self.status in ("completed", "failed", "cancelled")
