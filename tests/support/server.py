"""A real server for tests: private, on a unix socket, killed and restarted at will.

Promises the same program and the same way of starting as the embedded store, so that tests exercise what
users run. Fast by default (nothing is synced); give `durable=True` where a test is about durability.
TEST_STORE_SERVER names another server program to test against.
"""

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import redis

from towline.deploy.embedded import EmbeddedStore

FAST: Final[Mapping[str, str]] = {"appendfsync": "no"}
"""Kept over a kill of the process, not over a power cut: enough for tests, and ten times as fast."""


class StoreServer(EmbeddedStore):
    """An `EmbeddedStore` that tests may hurt. Start it with `start` or `with`."""

    def __init__(self, data: Path, *, durable: bool = False, settings: Mapping[str, str] | None = None) -> None:
        wanted = os.environ.get("TEST_STORE_SERVER")
        super().__init__(
            data,
            maxmemory_bytes=1024**3,
            server=Path(wanted) if wanted else None,
            settings={**({} if durable else FAST), **(settings or {})},
        )

    def kill(self) -> None:
        """SIGKILL, and back when the process is gone. The folder stays ours; `restart` starts it again."""
        assert self._process is not None, "the server was never started"
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def restart(self) -> None:
        """Kills the server if it lives and starts it on the same folder and the same address."""
        if self.poll() is None:
            self.kill()
        self.start()

    def flush(self) -> None:
        """Removes every key; scripts stay loaded."""
        with redis.Redis.from_url(self.url) as client:
            client.flushall()
