"""ruff's safe fixes: proposed as a unified diff, applied to a copy exactly as approved.

    propose   makes the diff, and an overlay that holds the changed files as they would be
    apply     lays the overlay over a fresh copy, if the two still differ by the very diff that was approved

Promises that the diff is exact: `git apply` makes of every original byte for byte what the overlay holds, also
with CRLF, without a newline at the end, and under odd names. The decision is bound to the diff's SHA-256; what
does not match it is not applied. The reviewed folder is never touched.
"""

import difflib
import hashlib
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from towline.workers.agents.review import tools
from towline.workers.agents.review.copies import RunFolder, write_file
from towline.workers.agents.review.models import Patch, PatchFile, ReviewError

_FILES_PER_CALL: Final = 100
_NO_NEWLINE: Final = b"\n\\ No newline at end of file\n"
_ESCAPES: Final = {"\a": "a", "\b": "b", "\t": "t", "\n": "n", "\v": "v", "\f": "f", "\r": "r", '"': '"', "\\": "\\"}
_TO_QUOTE: Final = re.compile(r'[\x00-\x1f\x7f"\\]')


def propose(folder: RunFolder, copy: str, paths: Sequence[str]) -> tuple[Patch, bytes]:
    """The safe fixes for these files of a frozen copy: what they change, and the diff itself.

    A patch without files says that there is nothing to fix; its diff is empty.
    """
    before = folder.get(copy)
    with folder.building() as after, folder.building() as overlay:
        shutil.copytree(before, after, dirs_exist_ok=True)
        for start in range(0, len(paths), _FILES_PER_CALL):
            tools.fix(after, paths[start : start + _FILES_PER_CALL])
        diffs = _diffs(before, after, paths)
        for path in diffs:
            write_file(overlay, path, (after / path).read_bytes())
        digest = _digest(diffs)
        name = folder.keep(overlay, f"overlay-{digest[:32]}")
    diff = b"".join(diffs.values())
    return Patch(digest, name, len(diff), [_counted(path, diffs[path]) for path in diffs]), diff


def apply(folder: RunFolder, copy: str, patch: Patch, approved_sha256: str) -> str:
    """The name of a copy that is the frozen copy with the approved diff applied.

    Raises:
        ReviewError: the diff between the frozen copy and the overlay is not the approved one; nothing is applied.
    """
    before, overlay = folder.get(copy), folder.get(patch.overlay)
    changed = [file.path for file in patch.files]
    if _digest(_diffs(before, overlay, changed)) != approved_sha256:
        raise ReviewError("the copies no longer differ by the approved diff, so nothing was applied; review again")
    with folder.building() as fixed:
        shutil.copytree(before, fixed, dirs_exist_ok=True)
        for path in changed:
            write_file(fixed, path, (overlay / path).read_bytes())
        return folder.keep(fixed, f"fixed-{approved_sha256[:32]}")


def file_diff(path: str, before: bytes, after: bytes) -> bytes:
    """The unified diff that turns `before` into `after`, in the form that git reads; empty if they are equal."""
    # latin-1 maps every byte to one character and back, so that difflib can work on any content.
    hunks = list(difflib.unified_diff(_lines(before), _lines(after)))[2:]
    if not hunks:
        return b""
    header = f"--- {_header_name('a', path)}\n+++ {_header_name('b', path)}\n"
    body = (line.encode("latin-1") for line in hunks)
    return header.encode() + b"".join(line if line.endswith(b"\n") else line + _NO_NEWLINE for line in body)


def _diffs(before: Path, after: Path, paths: Sequence[str]) -> dict[str, bytes]:
    """The diff of each file that differs, in the order of `paths`."""
    diffs = {path: file_diff(path, (before / path).read_bytes(), (after / path).read_bytes()) for path in paths}
    return {path: diff for path, diff in diffs.items() if diff}


def _digest(diffs: Mapping[str, bytes]) -> str:
    return hashlib.sha256(b"".join(diffs.values())).hexdigest()


def _lines(data: bytes) -> list[str]:
    """Lines as git sees them: only a line feed ends one, a carriage return is content."""
    return [line for line in re.split(r"(?<=\n)", data.decode("latin-1")) if line]


def _header_name(side: str, path: str) -> str:
    name = f"{side}/{path}"
    if _TO_QUOTE.search(name):
        return '"' + _TO_QUOTE.sub(_escaped, name) + '"'
    return name + "\t" if " " in name else name  # the tab says where a name with spaces ends


def _escaped(match: re.Match[str]) -> str:
    character = match.group()
    return "\\" + (_ESCAPES.get(character) or f"{ord(character):03o}")


def _counted(path: str, diff: bytes) -> PatchFile:
    lines = diff.split(b"\n")[2:]
    added = sum(line.startswith(b"+") for line in lines)
    removed = sum(line.startswith(b"-") for line in lines)
    return PatchFile(path, added, removed)
