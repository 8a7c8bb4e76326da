"""Walks a folder once and freezes its Python files into a copy.

Promises that whatever lies in the folder, the walk ends: symlinks are never followed, only regular files are
opened and never so that opening could block, and `Limits` bounds names, depth and bytes. What cannot be
reviewed becomes a finding that says why; only a folder with nothing to review, or with too much, is an error.

The tools then run on the copy: whoever edits the folder meanwhile cannot mix two states into one report.
"""

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec

from towline.workers.agents.review.copies import RunFolder, write_file
from towline.workers.agents.review.models import (
    LIMITS,
    Finding,
    Inventory,
    LanguageCount,
    Limits,
    ReviewError,
    Severity,
    plural,
)

SKIPPED_FOLDERS: Final = frozenset(
    {".git", ".hg", ".svn", ".mypy_cache", ".nox", ".pytest_cache", ".ruff_cache", ".tox", ".venv", "__pycache__"}
    | {"node_modules"}
)

PYTHON: Final = "Python"
_LANGUAGES: Final = {
    PYTHON: ".py .pyi .pyw",
    "C": ".c .h",
    "C++": ".cc .cpp .cxx .hh .hpp",
    "CSS": ".css .scss",
    "Go": ".go",
    "HTML": ".htm .html",
    "Java": ".java",
    "JavaScript": ".cjs .js .jsx .mjs",
    "JSON": ".json",
    "Markdown": ".md",
    "reStructuredText": ".rst",
    "Rust": ".rs",
    "Shell": ".bash .sh",
    "SQL": ".sql",
    "Text": ".txt",
    "TOML": ".toml",
    "TypeScript": ".ts .tsx",
    "XML": ".xml",
    "YAML": ".yaml .yml",
}
_BY_SUFFIX: Final = {suffix: name for name, suffixes in _LANGUAGES.items() for suffix in suffixes.split()}
OTHER: Final = "other"

_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: a FIFO that takes a file's place between looking and opening must not hold us.
_FILE_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def take_inventory(source: Path, folder: RunFolder, limits: Limits = LIMITS) -> Inventory:
    """Read the folder `source` and leave a frozen copy of its Python files in `folder`.

    The same content gives the same result, whatever the order in which the disk lists it.

    Args:
        source: a real folder, as `resolve_source` answers it.

    Raises:
        ReviewError: there is no Python file to review, the folder cannot be read, or it exceeds `limits`.
    """
    with folder.building() as copy:
        walk = _Walk(source, copy, limits)
        walk.start()
        if not walk.digests:
            raise ReviewError(_nothing_to_review(walk))
        python = sorted(walk.digests)
        digest = hashlib.sha256(msgspec.json.encode([(path, walk.digests[path]) for path in python])).hexdigest()
        return Inventory(
            digest=f"sha256:{digest}",
            copy=folder.keep(copy, f"frozen-{digest[:32]}"),
            python=python,
            python_bytes=walk.copied_bytes,
            languages={name: LanguageCount(*walk.languages[name]) for name in sorted(walk.languages)},
            skipped=sorted(walk.skipped),
            findings=sorted(walk.findings, key=lambda finding: (finding.path, finding.code)),
        )


class _Walk:
    """One pass over the tree. Folders are opened by descriptor, so that none is exchanged for a link on the way."""

    def __init__(self, source: Path, copy: Path, limits: Limits) -> None:
        self.source = source
        self.copy = copy
        self.limits = limits
        self.digests: dict[str, str] = {}
        self.copied_bytes = 0
        self.entries = 0
        self.languages: dict[str, tuple[int, int]] = {}
        self.skipped: list[str] = []
        self.findings: list[Finding] = []

    def start(self) -> None:
        try:
            with _opened(self.source, _FOLDER_FLAGS) as descriptor:
                self._folder(descriptor, "", 0)
        except OSError as error:
            raise ReviewError(f"the folder cannot be read ({error.strerror}); check its permissions") from None

    def _folder(self, descriptor: int, prefix: str, depth: int) -> None:
        with os.scandir(descriptor) as entries:
            names = sorted(entry.name for entry in islice(entries, self.limits.files + 1))
        self.entries += len(names)
        if self.entries > self.limits.files:
            raise ReviewError(
                f"the folder holds more than {self.limits.files:,} files and folders; review one of its subfolders"
            )
        for name in names:
            path = prefix + name
            try:
                name.encode("utf-8")
                mode = os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode
                self._entry(descriptor, name, path, mode, depth)
            except UnicodeEncodeError:
                self._note(path, "bad-name", "warning", "the name is not valid UTF-8; not reviewed")
            except OSError as error:
                self._note(path, "unreadable", "error", f"cannot be read ({error.strerror}); not reviewed")

    def _entry(self, parent: int, name: str, path: str, mode: int, depth: int) -> None:
        if stat.S_ISLNK(mode):
            self._link(path)
        elif stat.S_ISDIR(mode):
            if name in SKIPPED_FOLDERS:
                self.skipped.append(path)
            elif depth == self.limits.depth:
                self._note(path, "too-deep", "warning", f"more than {depth} folders deep; not reviewed")
            else:
                with _opened(name, _FOLDER_FLAGS, parent) as descriptor:
                    self._folder(descriptor, f"{path}/", depth + 1)
        elif stat.S_ISREG(mode):
            self._file(parent, name, path)
        else:
            self._note(path, "special-file", "note", "a pipe, socket or device; not opened")

    def _file(self, parent: int, name: str, path: str) -> None:
        language = _BY_SUFFIX.get(os.path.splitext(name)[1].lower(), OTHER)
        if language != PYTHON:
            size = os.stat(name, dir_fd=parent, follow_symlinks=False).st_size
            self._count(language, size)
            return
        with _opened(name, _FILE_FLAGS, parent) as descriptor:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(0, "it changed while it was read")
            self._count(language, status.st_size)
            data = b"" if status.st_size > self.limits.file_bytes else _read(descriptor, self.limits.file_bytes + 1)
        if max(status.st_size, len(data)) > self.limits.file_bytes:
            self._note(path, "too-large", "warning", f"larger than {self.limits.file_bytes:,} bytes; not reviewed")
        elif b"\0" in data:
            self._note(path, "binary", "warning", "holds NUL bytes, so it is no Python source; not reviewed")
        else:
            self._freeze(path, data)

    def _freeze(self, path: str, data: bytes) -> None:
        self.copied_bytes += len(data)
        if self.copied_bytes > self.limits.total_bytes:
            raise ReviewError(
                f"the Python files are larger than {self.limits.total_bytes:,} bytes together;"
                " review one of the subfolders"
            )
        write_file(self.copy, path, data)
        self.digests[path] = hashlib.sha256(data).hexdigest()

    def _link(self, path: str) -> None:
        """Say why a link was not followed, unless its target is reviewed under its own name."""
        link = self.source / path
        target = Path(os.path.realpath(link))
        if not target.is_relative_to(self.source):
            # Whether anything is there is nobody's business here, so it is not looked at.
            self._note(path, "link-outside", "note", "a symlink that leads out of the folder; not followed")
        elif target.is_symlink() or link.is_relative_to(target):
            self._note(path, "link-loop", "warning", "a symlink that leads back to itself or above; not followed")
        elif not target.exists():
            self._note(path, "link-dangling", "warning", "a symlink to something that does not exist")

    def _count(self, language: str, size_bytes: int) -> None:
        files, total = self.languages.get(language, (0, 0))
        self.languages[language] = (files + 1, total + size_bytes)

    def _note(self, path: str, code: str, severity: Severity, message: str) -> None:
        shown = path.encode("utf-8", "backslashreplace").decode("utf-8")
        self.findings.append(Finding(shown, "inventory", code, severity, message))


@contextmanager
def _opened(path: str | Path, flags: int, parent: int | None = None) -> Iterator[int]:
    descriptor = os.open(path, flags, dir_fd=parent)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _read(descriptor: int, at_most_bytes: int) -> bytes:
    """What the file holds, read to its end or to the bound: one read may answer less than there is."""
    pieces: list[bytes] = []
    left = at_most_bytes
    while left and (piece := os.read(descriptor, left)):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def _nothing_to_review(walk: _Walk) -> str:
    if walk.findings:
        first = walk.findings[0]
        return f"no Python file in the folder can be reviewed ({first.code}: {first.message}); choose another folder"
    if walk.languages:
        files = plural(sum(files for files, _ in walk.languages.values()), "file")
        return f"there is no Python file among the {files} of the folder; choose another folder"
    return "the folder holds nothing to review; choose a folder with Python files"
