"""Payloads in a folder of this machine: the default place.

Promises that what `keep` returned from is on disk (written, synced, renamed, and each folder above synced) and that
no link in the folder is ever followed: files are opened below descriptors of their folders, so a link that somebody
plants there is refused, not read and not written through. The folder itself is made on first use with mode 0700.
"""

import contextlib
import errno
import logging
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from towline.protocol.store.api import StoreFull
from towline.protocol.store.payload_storage import CHUNK_BYTES, MissingPayload

_log: Final = logging.getLogger("towline.payloads")

_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: a pipe that lies there must not hold us.
_READ_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_PART: Final = ".part"
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class Folder:
    """`Storage` below `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @contextmanager
    def spool(self) -> Iterator[BinaryIO]:
        """See `Storage.spool`. The file lies in the folder already, under a name of its own."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = f".{secrets.token_hex(8)}{_PART}"
        with self._root() as root, _full_is_told():
            try:
                with open(name, "wb", opener=lambda path, _: os.open(path, _WRITE_FLAGS, 0o600, dir_fd=root)) as file:
                    yield file
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=root)

    def keep(self, spooled: BinaryIO, key: str) -> None:
        """See `Storage.keep`. A link that stands in the way is replaced, not followed."""
        folder, name = key.split("/")
        with _full_is_told(), self._root() as root, self._below(root, folder, make=True) as parent:
            if not _is_file(name, parent):
                spooled.flush()
                os.fsync(spooled.fileno())
                os.rename(spooled.name, name, src_dir_fd=root, dst_dir_fd=parent)
            self._sync(root, parent)

    def size(self, key: str) -> int:
        """See `Storage.size`."""
        with self._file(key) as descriptor:
            return os.fstat(descriptor).st_size

    def read(self, key: str, first: int, length: int) -> Iterator[bytes]:
        """See `Storage.read`."""
        with self._file(key) as descriptor:
            at, end = first, first + length
            while at < end and (piece := os.pread(descriptor, min(CHUNK_BYTES, end - at), at)):
                yield piece
                at += len(piece)

    def copy(self, source: str, target: str) -> None:
        """See `Storage.copy`: a second name for the same file, where the disk can do that."""
        from_folder, from_name = source.split("/")
        to_folder, to_name = target.split("/")
        with (
            _full_is_told(),
            self._root() as root,
            self._below(root, from_folder) as here,
            self._below(root, to_folder, make=True) as there,
        ):
            if not _is_file(from_name, here):
                raise MissingPayload(source)
            try:
                os.link(from_name, to_name, src_dir_fd=here, dst_dir_fd=there, follow_symlinks=False)
            except FileExistsError:
                pass
            except OSError:
                with self.spool() as file:
                    for piece in self.read(source, 0, self.size(source)):
                        file.write(piece)
                    self.keep(file, target)
            self._sync(root, there)

    def remove(self, key: str) -> None:
        """See `Storage.remove`."""
        folder, name = key.split("/")
        with (
            contextlib.suppress(FileNotFoundError, MissingPayload),
            self._root() as root,
            self._below(root, folder) as parent,
        ):
            os.unlink(name, dir_fd=parent)

    def remove_folder(self, folder: str) -> None:
        """See `Storage.remove_folder`. A link that somebody planted there is removed, not followed."""
        with contextlib.suppress(FileNotFoundError), self._root() as root:
            try:
                with self._below(root, folder) as parent:
                    for name in os.listdir(parent):
                        with contextlib.suppress(FileNotFoundError):
                            os.unlink(name, dir_fd=parent)
            except MissingPayload:
                os.unlink(folder, dir_fd=root)
            else:
                os.rmdir(folder, dir_fd=root)
            os.fsync(root)

    def folders(self) -> list[str]:
        """See `Storage.folders`."""
        with contextlib.suppress(FileNotFoundError), self._root() as root:
            return [name for name in os.listdir(root) if not name.startswith(".")]
        return []

    def older(self, folder: str, age_s: float) -> list[str]:
        """See `Storage.older`."""
        with (
            contextlib.suppress(FileNotFoundError, MissingPayload),
            self._root() as root,
            self._below(root, folder) as parent,
        ):
            return [f"{folder}/{name}" for name in _older(parent, age_s)]
        return []

    def tidy(self, age_s: float) -> None:
        """See `Storage.tidy`."""
        with contextlib.suppress(FileNotFoundError), self._root() as root:
            for name in _older(root, age_s):
                if name.endswith(_PART):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=root)

    @contextmanager
    def _root(self) -> Iterator[int]:
        # The folder that the operator named may be reached over links; nothing inside it may.
        with _opened(os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as descriptor:
            yield descriptor

    @contextmanager
    def _below(self, root: int, folder: str, *, make: bool = False) -> Iterator[int]:
        if make:
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, 0o700, dir_fd=root)
        try:
            opened = os.open(folder, _FOLDER_FLAGS, dir_fd=root)
        except OSError as error:
            if make or error.errno == errno.ENOENT:
                raise
            raise _refused(folder) from None
        with _opened(opened) as descriptor:
            yield descriptor

    @contextmanager
    def _file(self, key: str) -> Iterator[int]:
        folder, name = key.split("/")
        try:
            with self._root() as root, self._below(root, folder) as parent:
                opened = os.open(name, _READ_FLAGS, dir_fd=parent)
        except FileNotFoundError:
            raise MissingPayload(key) from None
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise _refused(key) from None
        with _opened(opened) as descriptor:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise _refused(key)
            yield descriptor

    def _sync(self, root: int, parent: int) -> None:
        # Also where the file stood already: whoever renamed it may have died before the folders were synced.
        os.fsync(parent)
        os.fsync(root)
        with _opened(os.open(self.root.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as above:
            os.fsync(above)


@contextmanager
def _opened(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _full_is_told() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise StoreFull("there is no room left for payloads; nothing was written") from error
        raise


def _refused(key: str) -> MissingPayload:
    _log.error("%s among the payloads is a link or no plain file, and was not opened", key)
    return MissingPayload(key)


def _is_file(name: str, parent: int) -> bool:
    try:
        return stat.S_ISREG(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def _older(parent: int, age_s: float) -> list[str]:
    found, before_s = [], time.time() - age_s
    for name in os.listdir(parent):
        with contextlib.suppress(FileNotFoundError):
            if os.stat(name, dir_fd=parent, follow_symlinks=False).st_mtime < before_s:
                found.append(name)
    return found
