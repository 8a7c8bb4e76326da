"""Uploads of one run, for the code of its activities.

Promises that only what the run was given is handed out, whole and with the hash that was announced, or not at all.
Leaves taking uploads to `protocol.store.given`.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from towline.protocol.store.given import given_upload, upload_field
from towline.protocol.store.interface import Store
from towline.protocol.store.payloads import RunPayloads

_ANSWER_S: Final = 30.0

FetchUpload = Callable[[str, Path], int]
"""Writes the upload of that ref to a new file; its size."""


class RunUploads:
    """The uploads of `run`. Make it on the worker's loop; `fetch` is called from threads."""

    def __init__(self, store: Store, payloads: RunPayloads, run: str) -> None:
        self._store = store
        self._payloads = payloads
        self._run = run
        self._loop = asyncio.get_running_loop()

    def fetch(self, ref: str, path: Path) -> int:
        """See `activity.fetch_upload`."""
        if _is_on_a_loop():
            raise RuntimeError("this waits: call it in a thread, with asyncio.to_thread(activity.fetch_upload, …)")
        field = upload_field(ref)
        asking = asyncio.run_coroutine_threadsafe(self._store.side_fields(self._run, [field]), self._loop)
        found = asking.result(_ANSWER_S)
        if field not in found:
            raise LookupError("the run was given no such upload")
        with path.open("xb") as file:
            return self._payloads.fetch_now(given_upload(found[field]).sha256, file)


def _is_on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
