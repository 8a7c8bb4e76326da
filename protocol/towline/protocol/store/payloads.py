"""Bytes too large for the log, by run and the hash of their content; and uploads, until a run takes them.

Promises that what `put` or `put_stream` returned is durable and readable before anybody can name it, that a stream
which breaks off, is longer than allowed or has another hash leaves nothing, that keys are made from run and content or
from a ref of ours, so no caller chooses a path, and that the bytes of a run can go without those of any other. Leaves
rights to callers, and who owns an upload to `uploads`. The bytes lie where `payload_storage.Storage` says: in a local
folder, or in an object store that a URL names.
"""

import asyncio
import hashlib
import re
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from towline.protocol.ids import is_run_id, is_upload_ref
from towline.protocol.store.payload_folder import Folder
from towline.protocol.store.payload_storage import MissingPayload, Storage

__all__ = [
    "URL_VARIABLE", "BadPayload", "MissingPayload", "PayloadTooLarge", "Payloads", "RunPayloads", "Stored",
    "open_payloads",
]  # fmt: skip

URL_VARIABLE: Final = "TOWLINE_PAYLOADS_URL"
"""Environment variable with the object store of all gateways and workers. Without it, payloads are local files."""

_SHA256: Final = re.compile(r"[0-9a-f]{64}\Z")
_UPLOADS: Final = "uploads"
_MARK: Final = 9
"""How much of a folder's name stands before the id of its run."""
_WRITE_BYTES: Final = 1024 * 1024
_SCHEMES: Final = ("s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss")


class PayloadTooLarge(ValueError):
    """More bytes came than are allowed; nothing was kept."""


class BadPayload(ValueError):
    """The bytes are not what their sender, or the one who keeps them, said; nothing was kept."""


class Stored(Struct, frozen=True):
    """Bytes that are durable now."""

    sha256: str
    size: int


class Payloads:
    """Payloads in a folder (a `Path`) or another storage."""

    def __init__(self, where: Path | Storage) -> None:
        self._storage: Storage = Folder(where) if isinstance(where, Path) else where

    def of(self, run: str) -> "RunPayloads":
        """The payloads of one run, which nobody shares."""
        return RunPayloads(self._storage, run)

    async def runs(self) -> list[str]:
        """The ids of all runs that have bytes here, or had some."""
        names = await asyncio.to_thread(self._storage.folders)
        return [name[_MARK:] for name in names if is_run_id(name[_MARK:]) and run_folder(name[_MARK:]) == name]

    async def put_upload(
        self, ref: str, chunks: AsyncIterable[bytes], *, limit_bytes: int, sha256: str | None = None
    ) -> Stored:
        """Stores what `chunks` brings as the upload of that ref. Raises as `RunPayloads.put_stream`."""
        return await _put_stream(self._storage, chunks, limit_bytes, sha256, lambda _: _upload(ref))

    async def remove_upload(self, ref: str) -> None:
        """Removes the upload's own bytes, if they are there."""
        await asyncio.to_thread(self._storage.remove, _upload(ref))

    async def sweep(self, age_s: float) -> int:
        """Removes uploads, and what killed processes left unfinished, older than `age_s`; how many uploads."""

        def sweep() -> int:
            self._storage.tidy(age_s)
            overdue = self._storage.older(_UPLOADS, age_s)
            for key in overdue:
                self._storage.remove(key)
            return len(overdue)

        return await asyncio.to_thread(sweep)


class RunPayloads:
    """The payloads of `run`, by content. The same bytes in two runs are kept twice, so each may be removed."""

    def __init__(self, storage: Storage, run: str) -> None:
        self._storage = storage
        self._folder = run_folder(run)

    async def put(self, data: bytes) -> str:
        """Stores `data` durably; its SHA-256 in lower-case hex."""
        return await asyncio.to_thread(self.put_now, data)

    def put_now(self, data: bytes) -> str:
        """`put` for callers outside an event loop."""
        sha256 = hashlib.sha256(data).hexdigest()
        with self._storage.spool() as file:
            file.write(data)
            self._storage.keep(file, self._key(sha256))
        return sha256

    async def put_stream(self, chunks: AsyncIterable[bytes], *, limit_bytes: int, sha256: str | None = None) -> Stored:
        """Stores what `chunks` brings, by its content.

        Raises `PayloadTooLarge` as soon as more than `limit_bytes` came, and `BadPayload` when the bytes have another
        hash than `sha256`.
        """
        return await _put_stream(self._storage, chunks, limit_bytes, sha256, self._key)

    async def size(self, sha256: str) -> int:
        """How many bytes the payload has. Raises `MissingPayload`."""
        return await asyncio.to_thread(self._storage.size, self._key(sha256))

    async def read(self, sha256: str) -> bytes:
        """The whole payload, which must be small. Raises `MissingPayload`, and `BadPayload` for damaged bytes."""
        return await asyncio.to_thread(self._read_now, sha256)

    def _read_now(self, sha256: str) -> bytes:
        key = self._key(sha256)
        data = b"".join(self._storage.read(key, 0, self._storage.size(key)))
        if hashlib.sha256(data).hexdigest() != sha256:
            raise BadPayload(f"the bytes of payload {sha256} are damaged")
        return data

    async def stream(self, sha256: str, first: int, length: int) -> AsyncIterator[bytes]:
        """The bytes from `first` on, in small pieces. Raises `MissingPayload`."""
        pieces = iter(self._storage.read(self._key(sha256), first, length))
        while (piece := await asyncio.to_thread(_next, pieces)) is not None:
            yield piece

    def fetch_now(self, sha256: str, target: BinaryIO) -> int:
        """Copies the payload to `target`, for callers in threads; its size. Raises as `read` does."""
        key, digest, size = self._key(sha256), hashlib.sha256(), 0
        for piece in self._storage.read(key, 0, self._storage.size(key)):
            digest.update(piece)
            target.write(piece)
            size += len(piece)
        if digest.hexdigest() != sha256:
            raise BadPayload(f"the bytes of payload {sha256} are damaged")
        return size

    async def adopt_upload(self, ref: str, sha256: str) -> None:
        """Keeps the upload's bytes by their content, beside the upload. Raises `MissingPayload`."""

        def adopt() -> None:
            try:
                self._storage.size(self._key(sha256))
            except MissingPayload:
                self._storage.copy(_upload(ref), self._key(sha256))

        await asyncio.to_thread(adopt)

    async def remove_all(self) -> None:
        """Removes every payload of the run, also those that no event ever named. Harmless where there are none."""
        await asyncio.to_thread(self._storage.remove_folder, self._folder)

    def _key(self, sha256: str) -> str:
        if not _SHA256.match(sha256):
            raise MissingPayload(sha256)
        return f"{self._folder}/{sha256}"


def open_payloads(where: Path | str) -> Payloads:
    """Payloads in a folder, or at a URL: `file:///…`, `s3://…`, `gs://…`, `az://…`. Raises `ValueError`."""
    if isinstance(where, Path):
        return Payloads(where)
    parts = urlsplit(where)
    if parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path.startswith("/"):
        return Payloads(Path(unquote(parts.path)))
    if parts.scheme not in _SCHEMES or not parts.netloc:
        raise ValueError(f"an address of payloads is one of file:///, {', '.join(f'{s}://' for s in _SCHEMES)}")
    # Only who uses an object store pays for the library.
    from towline.protocol.store.payload_objects import Objects

    return Payloads(Objects.at(where))


def run_folder(run: str) -> str:
    """The folder of a run's payloads: its id behind a few digits of the id's hash.

    So ids that differ in case alone stay apart on disks that do not tell case, and no id is `uploads` or hidden.
    """
    if not is_run_id(run):
        raise MissingPayload(run)
    return f"{hashlib.sha256(run.encode()).hexdigest()[:8]}-{run}"


async def _put_stream(
    storage: Storage,
    chunks: AsyncIterable[bytes],
    limit_bytes: int,
    sha256: str | None,
    key_of: Callable[[str], str],
) -> Stored:
    with storage.spool() as file:
        digest, size, waiting = hashlib.sha256(), 0, bytearray()

        def write(data: bytes) -> None:
            digest.update(data)
            file.write(data)

        async for chunk in chunks:
            size += len(chunk)
            if size > limit_bytes:
                raise PayloadTooLarge(f"more than {limit_bytes} bytes")
            waiting += chunk
            if len(waiting) >= _WRITE_BYTES:
                await asyncio.to_thread(write, bytes(waiting))
                waiting.clear()
        await asyncio.to_thread(write, bytes(waiting))
        found = digest.hexdigest()
        if sha256 not in (None, found):
            raise BadPayload("the bytes have another SHA-256 than was said")
        await asyncio.to_thread(storage.keep, file, key_of(found))
    return Stored(found, size)


def _upload(ref: str) -> str:
    if not is_upload_ref(ref):
        raise MissingPayload(ref)
    return f"{_UPLOADS}/{ref}"


def _next(pieces: Iterator[bytes]) -> bytes | None:
    return next(pieces, None)
