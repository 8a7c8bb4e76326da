"""Payloads in an object store: S3 and what speaks like it, Google Cloud Storage, Azure. The only importer of obstore.

Promises that a key is readable only once all its bytes are there: they are spooled to a local file first, checked
by `payloads`, and then put in one atomic step. What the store says of itself (addresses, credentials) stands in no
error that leaves here.
"""

import logging
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, BinaryIO, Final, cast

import obstore
from obstore.exceptions import BaseError
from obstore.store import ObjectStore, from_url

from towline.protocol.store.api import StoreUnavailable
from towline.protocol.store.payload_storage import CHUNK_BYTES, MissingPayload

_log: Final = logging.getLogger("towline.payloads")
_CLIENT: Final[Any] = {"timeout": "60s", "connect_timeout": "5s"}
_ALLOW_HTTP: Final = ("AWS_ALLOW_HTTP", "AZURE_ALLOW_HTTP", "GOOGLE_ALLOW_HTTP")
_QUERY: Final = re.compile(r"\?\S*")
_RETRIES: Final[Any] = {"max_retries": 3, "retry_timeout": timedelta(seconds=20)}


class Objects:
    """`Storage` in `store`."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    @classmethod
    def at(cls, url: str) -> "Objects":
        """The store at `url`, such as `s3://bucket/prefix`; credentials come from the environment, as its tools use.

        Raises `ValueError` for a URL of no kind of store.
        """
        # Options of ours take the place of what the library reads from the environment, so this one is read here.
        allow_http = any(os.environ.get(name, "").lower() in ("1", "true") for name in _ALLOW_HTTP)
        client = {**_CLIENT, "allow_http": allow_http}
        options = {} if url.startswith("memory:") else {"client_options": client, "retry_config": _RETRIES}
        try:
            return cls(cast(Any, from_url)(url, **options))
        except (BaseError, ValueError) as error:
            _log.error("the object store cannot be used: %s", _first_line(error))
            raise ValueError("it is no object store that can be used") from None

    def spool(self) -> AbstractContextManager[BinaryIO]:
        """See `Storage.spool`: a nameless local file."""
        return cast(AbstractContextManager[BinaryIO], tempfile.TemporaryFile())

    def keep(self, spooled: BinaryIO, key: str) -> None:
        """See `Storage.keep`."""
        spooled.flush()
        spooled.seek(0)
        with _translated(key):
            obstore.put(self._store, key, spooled)

    def size(self, key: str) -> int:
        """See `Storage.size`."""
        with _translated(key):
            return int(obstore.head(self._store, key)["size"])

    def read(self, key: str, first: int, length: int) -> Iterator[bytes]:
        """See `Storage.read`."""
        if not length:
            return
        with _translated(key):
            found = obstore.get(self._store, key, options={"range": (first, first + length)})
            for piece in found.stream(min_chunk_size=CHUNK_BYTES):
                yield bytes(piece)

    def copy(self, source: str, target: str) -> None:
        """See `Storage.copy`."""
        with _translated(source):
            obstore.copy(self._store, source, target)

    def remove(self, key: str) -> None:
        """See `Storage.remove`."""
        try:
            with _translated(key):
                obstore.delete(self._store, key)
        except MissingPayload:
            return

    def remove_folder(self, folder: str) -> None:
        """See `Storage.remove_folder`."""
        with _translated(folder):
            for page in obstore.list(self._store, prefix=folder):
                obstore.delete(self._store, [str(found["path"]) for found in page])

    def folders(self) -> list[str]:
        """See `Storage.folders`."""
        with _translated(""):
            return [str(found) for found in obstore.list_with_delimiter(self._store)["common_prefixes"]]

    def older(self, folder: str, age_s: float) -> list[str]:
        """See `Storage.older`."""
        before = datetime.now(UTC) - timedelta(seconds=age_s)
        with _translated(folder):
            pages = obstore.list(self._store, prefix=folder)
            return [str(found["path"]) for page in pages for found in page if found["last_modified"] < before]

    def tidy(self, age_s: float) -> None:
        """See `Storage.tidy`: a nameless file leaves nothing."""


@contextmanager
def _translated(key: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise MissingPayload(key) from None
    except BaseError as error:
        # Its text names hosts and buckets, which are the operator's business alone.
        _log.error("the object store failed: %s", _first_line(error))
        raise StoreUnavailable("the store of payloads does not answer") from None


def _first_line(error: Exception) -> str:
    """What went wrong, without query strings, in which some stores carry their credentials."""
    return _QUERY.sub("?…", str(error).partition("\n")[0])
