"""Unpacks an uploaded archive that anybody may have made, into a fresh folder.

Promises that only plain files and folders appear, all of them below the folder: a link, a device, an absolute name
or one with `..`, a name that comes twice, more than `FILES` entries or `TOTAL_BYTES` bytes end the unpacking with a
`ReviewError` that says which. Bytes are counted as they come out, whatever the archive says of itself, so a bomb costs
no more than the limit. Nothing unpacked is executable.
"""

import gzip
import re
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO, Final, cast

from towline.workers.agents.review.models import ReviewError

FILES: Final = 5_000
TOTAL_BYTES: Final = 100 << 20
NAME_BYTES: Final = 1_024
PART_BYTES: Final = 255
_CHUNK_BYTES: Final = 256 << 10

_TAR_SLACK_BYTES: Final = FILES * 3 * 512 + (8 << 20)
"""What headers, padding and long names may add to the bytes of a tar's files."""

_DIRECTORY_BYTES: Final = FILES * 512 + (1 << 20)
"""How long the list of contents of a zip with so few entries may be: it is read into memory as a whole."""

_END: Final = b"PK\x05\x06"
_END64: Final = b"PK\x06\x07"
_END_BYTES: Final = 22
_DRIVE: Final = re.compile(r"[A-Za-z]:")
_DAMAGED: Final = "the archive is damaged or not complete; pack and upload it again"


def unpack(archive: Path, folder: Path) -> None:
    """Write what the zip or tar.gz `archive` holds into `folder`, which must not exist yet.

    Raises:
        ReviewError: it is no such archive, is damaged, or holds what is not allowed.
    """
    folder.mkdir()
    with archive.open("rb") as file:
        start = file.read(4)
        file.seek(0)
        unpacking = _Unpacking(folder)
        if start in (b"PK\x03\x04", _END):
            _unpack_zip(file, unpacking)
        elif start[:2] == b"\x1f\x8b":
            _unpack_tar(file, unpacking)
        else:
            raise ReviewError("the upload is neither a zip nor a tar.gz archive; pack the folder as one of them")


class _Unpacking:
    """What has come out so far."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._entries = 0
        self._left_bytes = TOTAL_BYTES

    def place(self, name: str) -> Path:
        """Where the entry of that name goes. Counts it."""
        self._entries += 1
        if self._entries > FILES:
            raise ReviewError(f"the archive holds more than {FILES:,} files and folders; pack less of it")
        return self._folder.joinpath(*_parts(name))

    def add_folder(self, path: Path) -> None:
        with _placing():
            path.mkdir(parents=True, exist_ok=True)

    def add_file(self, path: Path, content: IO[bytes], said_bytes: int) -> None:
        if said_bytes > self._left_bytes:
            raise _too_much()
        with _placing():
            path.parent.mkdir(parents=True, exist_ok=True)
            target = path.open("xb")
        with target:
            while piece := content.read(_CHUNK_BYTES):
                self._left_bytes -= len(piece)
                if self._left_bytes < 0:
                    raise _too_much()
                target.write(piece)


def _parts(name: str) -> list[str]:
    """The parts of an entry's name. Raises `ReviewError` for one that is not simply below the folder."""
    shown = ascii(name[:100])
    if len(name.encode("utf-8", "surrogateescape")) > NAME_BYTES:
        raise ReviewError(f"the archive holds a name of more than {NAME_BYTES:,} bytes: {shown}…")
    if "\0" in name or "\\" in name:
        raise ReviewError(f"the archive holds a name with a character that no name may have: {shown}")
    if name.startswith("/") or _DRIVE.match(name):
        raise ReviewError(f"the archive holds an absolute name: {shown}; pack it with relative ones")
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ReviewError(f"the archive holds a name that leads out of it: {shown}")
    if any(len(part.encode("utf-8", "surrogateescape")) > PART_BYTES for part in parts):
        raise ReviewError(f"the archive holds a name that is too long for a file: {shown}…")
    return parts


@contextmanager
def _placing() -> Iterator[None]:
    try:
        yield
    except (FileExistsError, NotADirectoryError, IsADirectoryError):
        raise ReviewError("the archive holds the same name twice; pack and upload it again") from None


@contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except (
        *(tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError, struct.error),
        *(NotImplementedError, RuntimeError, ValueError),  # what the readers raise on what they do not know
    ):
        raise ReviewError(_DAMAGED) from None


def _too_much() -> ReviewError:
    return ReviewError(f"the archive unpacks to more than {TOTAL_BYTES >> 20} MiB; pack less of it")


def _is_link(name: str) -> ReviewError:
    return ReviewError(f"the archive holds a link or a special file: {name[:100]!a}; pack plain files and folders only")


# --- zip


def _unpack_zip(file: BinaryIO, unpacking: _Unpacking) -> None:
    _check_directory(file)
    with _reading(), zipfile.ZipFile(file) as archive:
        for entry in archive.infolist():
            mode = entry.external_attr >> 16
            if entry.flag_bits & 0x1:
                raise ReviewError("the archive is encrypted; upload one without a password")
            if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise ReviewError("the archive is compressed in an unusual way; pack it as a plain zip or a tar.gz")
            if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise _is_link(entry.orig_filename)
            path = unpacking.place(entry.orig_filename)
            if entry.is_dir():
                unpacking.add_folder(path)
                continue
            with archive.open(entry) as content:
                unpacking.add_file(path, content, entry.file_size)


def _check_directory(file: BinaryIO) -> None:
    """Looks at the end of the file before the library does, which believes what it says there."""
    size = file.seek(0, 2)
    file.seek(max(0, size - _END_BYTES - 0xFFFF - 20))
    tail = file.read()
    file.seek(0)
    at = tail.rfind(_END)
    if at < 0 or len(tail) - at < _END_BYTES:
        raise ReviewError(_DAMAGED)
    entries, directory_bytes = struct.unpack_from("<HI", tail, at + 10)
    if _END64 in tail[max(0, at - 20) : at] or entries > FILES or directory_bytes > _DIRECTORY_BYTES:
        raise ReviewError(f"the archive holds more than {FILES:,} files and folders; pack less of it")


# --- tar.gz


class _Bounded:
    """Reads the unpacked stream, but never more than a tar within the limits can have."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._left_bytes = TOTAL_BYTES + _TAR_SLACK_BYTES

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self._left_bytes -= len(data)
        if self._left_bytes < 0:
            raise _too_much()
        return data


def _unpack_tar(file: BinaryIO, unpacking: _Unpacking) -> None:
    with _reading(), gzip.GzipFile(fileobj=file) as stream:
        bounded = cast(IO[bytes], _Bounded(cast(IO[bytes], stream)))
        with tarfile.open(fileobj=bounded, mode="r|") as archive:
            for entry in archive:
                if not (entry.isreg() or entry.isdir()) or entry.issparse():
                    raise _is_link(entry.name)
                path = unpacking.place(entry.name)
                if entry.isdir():
                    unpacking.add_folder(path)
                    continue
                content = archive.extractfile(entry)
                assert content is not None  # of a plain file there is always one
                unpacking.add_file(path, content, entry.size)
