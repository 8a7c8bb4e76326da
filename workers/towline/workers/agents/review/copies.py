"""The run's own folder on the worker's machine: copies that are complete or absent.

Promises that a name stands in the folder only once everything below it is written: a copy is built under a
name of its own and renamed when it is whole. Names are derived from content, so an activity that a crash makes
run twice builds the same thing under the same name, and two attempts at once do no harm. The reviewed folder
itself is never written to.

Leaves to others what the copies hold (`inventory`, `fixes`). Copies do not travel between machines: a run that
is carried on elsewhere finds none, and `RunFolder.get` says so.
"""

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from towline.workers.agents.review.models import ReviewError

WORK_VARIABLE: Final = "TOWLINE_WORK_DIR"
"""Environment variable with the folder that holds the folders of all runs. The local stack sets it."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_UNFINISHED: Final = "unfinished."


class RunFolder:
    """The folder of one run, made on first use, readable by its owner only."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of_run(cls, run: str, environment: Mapping[str, str] = os.environ) -> "RunFolder":
        """The folder of the run with this id, below `TOWLINE_WORK_DIR` or the system's temporary folder."""
        base = environment.get(WORK_VARIABLE) or os.path.join(tempfile.gettempdir(), "towline-work")
        return cls(Path(base) / _checked(run))

    @contextlib.contextmanager
    def building(self) -> Iterator[Path]:
        """A fresh empty folder to build a copy in; gone afterwards unless `keep` has named it."""
        self._make()
        path = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=self.path))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def keep(self, built: Path, name: str) -> str:
        """Give a built copy its name. If the name stands already, it holds the same and stays."""
        try:
            built.rename(self.path / _checked(name))
        except OSError:
            if not (self.path / name).is_dir():
                raise
        return name

    def get(self, name: str) -> Path:
        """The copy of that name.

        Raises:
            ReviewError: it is not here.
        """
        path = self.path / _checked(name)
        if not path.is_dir():
            raise ReviewError(
                "the copy of the reviewed files is not on this machine (removed, or made by a worker elsewhere);"
                " start the review again"
            )
        return path

    def tidy(self, keep: str | None) -> None:
        """Remove every copy but `keep`, and the folder itself when nothing is left."""
        for entry in self.path.iterdir() if self.path.is_dir() else ():
            if entry.name != keep:
                shutil.rmtree(entry, ignore_errors=True)
        with contextlib.suppress(OSError):
            self.path.rmdir()

    def _make(self) -> None:
        for folder in (self.path.parent, self.path):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # A folder in a shared /tmp, or a link, may have been laid out by somebody else.
            if {folder.lstat().st_uid, folder.stat().st_uid} != {os.geteuid()}:
                raise ReviewError(
                    f"the work folder belongs to another user; set {WORK_VARIABLE} to a folder of your own"
                )


def write_file(copy: Path, path: str, data: bytes) -> None:
    """Write one file of a copy that is being built, with the folders above it."""
    target = copy / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ReviewError("not a name for a folder of a run; this is a fault of the workflow")
    return name
