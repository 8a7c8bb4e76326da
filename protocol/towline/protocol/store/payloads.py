"""Bytes too large for the log, by the hash of their content, in a local folder.

Promises that what `put` returned is on disk: written, synced, renamed, and the folder synced, before any event
names it; and that a name is made from the content only, so no caller chooses a path. Leaves rights to callers.
"""

import asyncio
import hashlib
import os
import re
import secrets
from pathlib import Path
from typing import Final

_SHA256: Final = re.compile(r"[0-9a-f]{64}\Z")


class MissingPayload(LookupError):
    """No payload has this hash."""


class Payloads:
    """Content-addressed files below `root`, which is made on first use with mode 0700."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path_of(self, sha256: str) -> Path:
        """Where the payload lies or would lie. Raises `MissingPayload` for what is no SHA-256."""
        if not _SHA256.match(sha256):
            raise MissingPayload(sha256)
        return self.root / sha256[:2] / sha256

    async def put(self, data: bytes) -> str:
        """Stores `data` durably; its SHA-256 in lower-case hex."""
        return await asyncio.to_thread(self.put_now, data)

    def put_now(self, data: bytes) -> str:
        """`put` for callers outside an event loop."""
        sha256 = hashlib.sha256(data).hexdigest()
        path = self.path_of(sha256)
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        if not path.exists():
            _write(path, data)
        # Also where it stood already: whoever renamed it may have died before the folders were synced.
        for folder in (path.parent, self.root, self.root.parent):
            _sync_folder(folder)
        return sha256

    async def read(self, sha256: str) -> bytes:
        """The bytes. Raises `MissingPayload`."""
        path = self.path_of(sha256)
        try:
            return await asyncio.to_thread(path.read_bytes)
        except FileNotFoundError:
            raise MissingPayload(sha256) from None


def _write(path: Path, data: bytes) -> None:
    partial = path.parent / f".{secrets.token_hex(8)}.part"
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
