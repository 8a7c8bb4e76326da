"""Unfinished text in the store: published to whoever follows the run, and kept for those who come later.

Promises that only the holder of a run's lease publishes, and that nothing of it stands in the log or is named in a
script that commits: the kept texts expire by themselves, and losing them loses unfinished text and nothing else.
Leaves merging to `protocol.deltas`, and when to publish to the producer.
"""

from collections.abc import Sequence
from typing import Any, Final, cast

from towline.protocol import event_data as d
from towline.protocol.codec import NewEntry
from towline.protocol.cursor import Cursor
from towline.protocol.deltas import Piece, decode_piece, encode_piece, finishes, partial_entry
from towline.protocol.limits import STORE_PAGE_EVENTS
from towline.protocol.store import api
from towline.protocol.store.base import ScriptCaller, refusal
from towline.protocol.store.connection import translated
from towline.protocol.store.keys import RunKeys
from towline.protocol.store.openends import SYSTEM

_PARTIALS: Final = 20
_PARTIAL_BYTES: Final = 96 * 1024
TEXT_EXPIRES_MS: Final = 3_600_000
"""How long the text so far of a message outlives the last word of its producer."""


class Texts(ScriptCaller):
    """Pieces of unfinished messages, and the texts so far."""

    async def publish_pieces(
        self, run: str, fence: api.Fence, pieces: Sequence[Piece], texts: Sequence[Piece] = ()
    ) -> None:
        """Publishes `pieces` and keeps `texts`. Raises `NoRun`, `RunClosed`, `Fenced`, `StoreFull`."""
        keys = RunKeys.of(run)
        reply = await self._call(
            "publish_delta",
            [keys.run, keys.text] if texts else [keys.run],
            {
                "channel": keys.channel,
                "epoch": fence.epoch,
                "nonce": fence.nonce,
                "pieces": b"\n".join(encode_piece(piece) for piece in pieces).decode(),
                "texts": [[text.message, encode_piece(text).decode()] for text in texts],
                "expires_ms": TEXT_EXPIRES_MS,
            },
            now_at=None,
            relief=False,
        )
        if reply[0] != b"OK":
            raise refusal(reply, run)

    async def forget_texts(self, run: str, messages: Sequence[str]) -> None:
        """Drops the kept texts of finished messages. One that stays is left out by `unfinished`, and expires."""
        if messages:
            with translated():
                await cast("Any", self._client.hdel(RunKeys.of(run).text, *messages))

    async def partial_messages(self, run: str, beside: Sequence[NewEntry] = ()) -> list[NewEntry]:
        """What must precede the end of a run that finishes nothing more: its unfinished messages, as far as known.

        `beside`: entries of the same step, which may finish some. All together take at most `_PARTIAL_BYTES`.
        """
        finished = {entry.data.message for entry in beside if isinstance(entry.data, d.MessageCompleted)}
        ended = {entry.data.step for entry in beside if isinstance(entry.data, d.ToolFinished | d.ToolFailed)}
        texts = [
            text
            for text in await self.unfinished(run)
            if text.kind != "tool_arguments" and text.message not in finished and text.step not in ended
        ][:_PARTIALS]
        return [partial_entry(text, SYSTEM, most_bytes=_PARTIAL_BYTES // len(texts)) for text in texts]

    async def unfinished(self, run: str) -> list[Piece]:
        """The text so far of each message that the log does not show as finished. Raises `NoRun`, `RunGone`."""
        with translated():
            kept: dict[bytes, bytes] = await cast("Any", self._client.hgetall(RunKeys.of(run).text))
        if not kept:
            return []
        found: dict[str, Piece] = {}
        since = None
        for value in kept.values():
            seq, _, raw = value.partition(b"\n")
            piece = decode_piece(raw)
            found[piece.message] = piece
            since = int(seq) if since is None else min(since, int(seq))
        after = Cursor(since or 0)
        while found:
            page = await self.read_log(run, after, limit=STORE_PAGE_EVENTS)
            for entry in page.entries:
                match finishes(entry):
                    case None:
                        continue
                    case ("message", message):
                        found.pop(message, None)
                    case ("step", step):
                        found = {name: piece for name, piece in found.items() if piece.step != step}
                    case _:
                        return []
            if len(page.entries) < STORE_PAGE_EVENTS:
                break
            after = page.entries[-1].cursor
        return list(found.values())
