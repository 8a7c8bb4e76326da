"""What a place for bytes must do: the one interface between `payloads` and the places (`folder`, `objects`).

Promises nothing by itself. Keys are made by `payloads` from hashes and refs of ours, never from what a user named.
All calls block; `payloads` makes them in threads.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import BinaryIO, Protocol

CHUNK_BYTES = 256 * 1024
"""How much of a payload is in memory at a time."""


class MissingPayload(LookupError):
    """There are no bytes under this hash or reference."""


class Storage(Protocol):
    """Bytes under keys. Raises `MissingPayload`, `StoreFull`, and `StoreUnavailable` for what may heal."""

    def spool(self) -> AbstractContextManager[BinaryIO]:
        """An empty file for bytes that nobody may see yet; gone afterwards, unless `keep` took it."""
        ...

    def keep(self, spooled: BinaryIO, key: str) -> None:
        """Makes the spooled bytes readable under `key`, all or nothing, durable when it returns."""
        ...

    def size(self, key: str) -> int:
        """How many bytes lie under `key`."""
        ...

    def read(self, key: str, first: int, length: int) -> Iterator[bytes]:
        """The bytes from `first` on, in pieces of at most about `CHUNK_BYTES`."""
        ...

    def copy(self, source: str, target: str) -> None:
        """Makes the bytes under `source` readable under `target` too, durable when it returns."""
        ...

    def remove(self, key: str) -> None:
        """Removes the bytes, if there are any."""
        ...

    def remove_folder(self, folder: str) -> None:
        """Removes all bytes below `folder`, if there are any; durable when it returns."""
        ...

    def folders(self) -> list[str]:
        """All folders that have bytes, or had some."""
        ...

    def older(self, folder: str, age_s: float) -> list[str]:
        """Keys below `folder` whose bytes were written more than `age_s` ago."""
        ...

    def tidy(self, age_s: float) -> None:
        """Removes what killed processes left unfinished longer ago than `age_s`."""
        ...
