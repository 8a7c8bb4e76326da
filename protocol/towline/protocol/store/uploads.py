"""Uploads: bytes that a subject has sent and no run has taken yet.

Promises that an upload is its uploader's alone, that one which a run took is no other run's, and that the store
forgets it by itself at its end. Leaves the bytes to `payloads`, the moment they become a run's to `given`.
"""

from typing import Any, Final, cast

import msgspec
from msgspec import Struct

from towline.protocol.store.base import ScriptCaller
from towline.protocol.store.connection import translated
from towline.protocol.store.keys import RunKeys


class Upload(Struct, frozen=True, omit_defaults=True):
    """What is known of an upload. `run`: the one that took it."""

    subject: str
    sha256: str
    size: int
    media_type: str
    expires_ms: int
    run: str | None = None


_decoder: Final = msgspec.json.Decoder(Upload)


def _key(ref: str) -> str:
    return f"{RunKeys.of(ref).partition.tag}:upload:{ref}"


class Uploads(ScriptCaller):
    """The uploads that have not ended."""

    async def keep_upload(self, ref: str, upload: Upload) -> None:
        """Makes the upload known until its end. Raises `StoreFull`."""
        life_ms = max(1, upload.expires_ms - self.now_ms())
        with translated():
            await cast("Any", self._client.set(_key(ref), msgspec.json.encode(upload), px=life_ms))

    async def upload(self, ref: str) -> Upload | None:
        """The upload, or None if there is none (any more)."""
        with translated():
            found = await cast("Any", self._client.get(_key(ref)))
        return None if found is None else _decoder.decode(found)

    async def forget_upload(self, ref: str) -> None:
        """Forgets the upload before its end, if it is still known."""
        with translated():
            await cast("Any", self._client.unlink(_key(ref)))

    async def give_upload(self, ref: str, upload: Upload, run: str) -> None:
        """Says that `run` has taken it; only a repeat of the same start may name it from now on."""
        given = msgspec.structs.replace(upload, run=run)
        with translated():
            await cast("Any", self._client.set(_key(ref), msgspec.json.encode(given), xx=True, keepttl=True))
