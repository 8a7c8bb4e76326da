"""Which local folders a run may read: the one check of `input.source.path`.

Promises that a path is accepted only if its real place (all symlinks resolved) is an allowed root or lies
below one, and that a refusal says nothing about what exists outside the roots: every path that is not below
a root gets the same words, whether or not there is anything. Messages carry no absolute path.

The gateway calls it when a run is started and answers `bad_request` on `FIELD`; the worker that opens the
folder calls it again, because what a path means can change in between. What is done with the folder, and what
is found in it, is left to the workflow.
"""

import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

FIELD: Final = "input.source.path"
"""The member of a start's body that a refusal names."""

ROOTS_VARIABLE: Final = "TOWLINE_ALLOW_PATHS"
"""Environment variable with the allowed roots, separated like PATH. The local stack sets it."""

MAX_PATH_BYTES: Final = 4096

OUTSIDE: Final = (
    "not a folder below an allowed one; name one that is, or let the person who runs the stack allow another"
    " (towline dev --allow-path DIR)"
)


class SourcePathError(ValueError):
    """The path is refused. The message says why and what to do, and is fit to be shown to the caller."""


def allowed_roots(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The roots that `TOWLINE_ALLOW_PATHS` names, in order; empty when it is unset or empty."""
    return tuple(root for root in environment.get(ROOTS_VARIABLE, "").split(os.pathsep) if root)


def resolve_source(path: str, roots: Sequence[str]) -> Path:
    """The real folder that `path` means, below (or equal to) the real place of one of `roots`.

    Args:
        path: absolute, without `..`; may go through symlinks as long as it ends below a root.
        roots: absolute folders; one that does not exist allows nothing.

    Raises:
        SourcePathError: the caller named something that is not such a folder.
    """
    _refuse_malformed(path)
    real = Path(os.path.realpath(path))
    # Only from here on may anything depend on what the disk holds at `real`.
    if not any(real.is_relative_to(os.path.realpath(root)) for root in roots if os.path.isabs(root)):
        raise SourcePathError(OUTSIDE)
    try:
        mode = os.lstat(real).st_mode
    except FileNotFoundError:
        raise SourcePathError("no such folder; check the spelling") from None
    except OSError as error:
        raise SourcePathError(f"the folder cannot be read ({error.strerror}); check its permissions") from None
    if stat.S_ISLNK(mode):  # realpath leaves a link only where links go round in a circle
        raise SourcePathError("a symlink that leads back to itself; name the folder itself")
    if not stat.S_ISDIR(mode):
        raise SourcePathError("not a folder; name the folder that holds the file")
    if not os.access(real, os.R_OK | os.X_OK):
        raise SourcePathError("the folder cannot be read; check its permissions")
    return real


def _refuse_malformed(path: str) -> None:
    if not path or "\0" in path:
        raise SourcePathError("not a path; give the absolute path of a folder")
    try:
        encoded = path.encode("utf-8")
    except UnicodeEncodeError:
        raise SourcePathError("not a path that UTF-8 can carry; give the absolute path of a folder") from None
    if len(encoded) > MAX_PATH_BYTES:
        raise SourcePathError(f"longer than {MAX_PATH_BYTES} bytes; give the absolute path of a folder")
    if not os.path.isabs(path):
        raise SourcePathError("not an absolute path; give the absolute path of a folder")
    # `..` behind a symlink means something else to the disk than to the eye, and would ask the disk about
    # folders outside the roots.
    if ".." in path.split("/"):
        raise SourcePathError("a path with '..' in it; give the absolute path of a folder without it")
