"""The data folder on disk: who owns it, where its socket lies, whether a process runs in it.

Promises one owner per folder, by a lock that the kernel drops with its last holder, and a socket path
short enough for the kernel in a folder of mode 0700. Leaves the server to `embedded`, which is to be read
first.
"""

import contextlib
import fcntl
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Final

SOCKET_PATH_MAX_BYTES: Final = 100
"""The kernel's limit is 107 bytes on Linux and 103 on macOS."""


class StoreFailed(Exception):
    """The embedded store cannot run; the message says why, and what to do."""


class StoreLocked(StoreFailed):
    """Another process owns the data folder; `pid` is its process id, or None when it did not write one."""

    def __init__(self, data: Path, pid: int | None) -> None:
        self.pid = pid
        owner = f"process {pid}" if pid else "another process"
        super().__init__(f"{data} is in use by {owner}: stop it, or choose another folder with --data")


def own(data: Path) -> int:
    """Makes the folder (0700 if absent) and its `store` folder, and returns the descriptor that owns it.

    Raises `StoreLocked` when another process does, `StoreFailed` when it cannot be a data folder.
    """
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(data / "owner.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreFailed(f"the data folder {data} cannot be used: {error.strerror}") from error
    if not try_lock(lock):
        pid = os.pread(lock, 20, 0).strip()
        os.close(lock)
        raise StoreLocked(data, int(pid) if pid.isdigit() else None)
    try:
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        folder = data / "store"
        folder.mkdir(mode=0o700, exist_ok=True)
        # It may have been made by hand, or unpacked from a backup: the socket in it is the only door.
        folder.chmod(0o700)
    except OSError as error:
        os.close(lock)
        raise StoreFailed(f"the data folder {data} cannot be used: {error.strerror}") from error
    return lock


def disown(lock: int) -> None:
    """Gives the folder back. The file stays: removing it lets two owners lock two files of one name."""
    os.ftruncate(lock, 0)
    os.close(lock)


def socket_path(folder: Path) -> Path:
    """Where the socket of the store in `folder` lies: inside, or in a private short folder recorded there.

    A recorded folder is used again, so a restart keeps the address and killed owners leave no heap of them.
    """
    inside = folder / "store.sock"
    if len(os.fsencode(inside)) <= SOCKET_PATH_MAX_BYTES:
        return inside
    record = folder / "socket-folder"
    with contextlib.suppress(OSError):
        recorded = Path(record.read_text().strip())
        status = recorded.lstat()
        if recorded.is_dir() and status.st_uid == os.geteuid() and status.st_mode & 0o077 == 0:
            return recorded / "store.sock"
    made = Path(tempfile.mkdtemp(prefix="towline-"))
    if len(os.fsencode(made / "store.sock")) > SOCKET_PATH_MAX_BYTES:
        made.rmdir()
        made = Path(tempfile.mkdtemp(prefix="towline-", dir="/tmp"))
    record.write_text(f"{made}\n")
    return made / "store.sock"


def try_lock(fd: int) -> bool:
    """Takes the lock on an open file if nobody holds it. Raises `StoreFailed` where there are no locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise StoreFailed(
            f"the file system of the data folder has no locks ({error.strerror}): choose a local folder"
        ) from error
    return True


def runs_in(pid: int, folder: Path) -> bool:
    """Whether process `pid` is a server whose working folder is `folder`."""
    if Path("/proc/self/cwd").exists():
        try:
            return Path(f"/proc/{pid}/cwd").samefile(folder)
        except OSError:
            return False
    # Without /proc (macOS): its open files name its working folder.
    answer = subprocess.run(["lsof", "-a", "-d", "cwd", "-p", str(pid), "-Fn"], capture_output=True, check=False)
    return b"n" + os.fsencode(folder.resolve()) in answer.stdout.splitlines()
