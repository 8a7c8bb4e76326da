"""The walk ends, follows nothing out of the folder, and says why it left something out."""

import errno
import os
import socket
from pathlib import Path

import pytest

from towline.workers.agents.review.copies import RunFolder
from towline.workers.agents.review.inventory import take_inventory
from towline.workers.agents.review.models import Inventory, LanguageCount, Limits, ReviewError

CLEAN = b"x = 1\n"


def codes(inventory: Inventory) -> dict[str, str]:
    return {finding.path: finding.code for finding in inventory.findings}


def frozen(folder: RunFolder, inventory: Inventory) -> dict[str, bytes]:
    copy = folder.get(inventory.copy)
    return {str(file.relative_to(copy)): file.read_bytes() for file in copy.rglob("*") if file.is_file()}


def test_python_files_are_frozen_and_everything_is_counted(source: Path, folder: RunFolder) -> None:
    (source / "pkg").mkdir()
    (source / "pkg" / "b.py").write_bytes(CLEAN)
    (source / "a.pyi").write_bytes(b"x: int\r\n")
    (source / "README.md").write_bytes(b"# Hello\n")
    (source / "data.bin").write_bytes(b"\0\1")
    inventory = take_inventory(source, folder)
    assert inventory.python == ["a.pyi", "pkg/b.py"]
    assert frozen(folder, inventory) == {"a.pyi": b"x: int\r\n", "pkg/b.py": CLEAN}
    assert inventory.languages == {
        "Markdown": LanguageCount(1, 8),
        "Python": LanguageCount(2, 14),
        "other": LanguageCount(1, 2),
    }
    assert inventory.files == 4
    assert inventory.findings == []


def test_the_same_content_gives_the_same_inventory_and_one_copy(source: Path, folder: RunFolder) -> None:
    (source / "a.py").write_bytes(CLEAN)
    assert take_inventory(source, folder) == take_inventory(source, folder)
    assert len(list(folder.path.iterdir())) == 1


def test_other_content_gives_another_digest(source: Path, folder: RunFolder) -> None:
    (source / "a.py").write_bytes(CLEAN)
    before = take_inventory(source, folder)
    (source / "a.py").rename(source / "b.py")
    renamed = take_inventory(source, folder)
    (source / "b.py").write_bytes(CLEAN * 2)
    edited = take_inventory(source, folder)
    assert len({before.digest, renamed.digest, edited.digest}) == 3


def test_the_folder_itself_is_left_as_it_was(source: Path, folder: RunFolder) -> None:
    (source / "a.py").write_bytes(b"import os\n")
    before = {path: path.stat().st_mtime_ns for path in [source, *source.rglob("*")]}
    take_inventory(source, folder)
    assert {path: path.stat().st_mtime_ns for path in [source, *source.rglob("*")]} == before


def test_what_is_not_a_plain_file_is_not_opened(source: Path, folder: RunFolder) -> None:
    (source / "a.py").write_bytes(CLEAN)
    os.mkfifo(source / "pipe.py")  # opening it for reading would wait for a writer for ever
    with socket.socket(socket.AF_UNIX) as server:
        here = os.open(source, os.O_RDONLY | os.O_DIRECTORY)
        try:
            server.bind(f"/proc/self/fd/{here}/socket.py" if os.path.exists("/proc/self/fd") else "socket.py")
        finally:
            os.close(here)
        inventory = take_inventory(source, folder)
    assert inventory.python == ["a.py"]
    assert codes(inventory) == {"pipe.py": "special-file", "socket.py": "special-file"}


def test_links_are_never_followed(source: Path, folder: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "secret.py").write_bytes(b"password = 1\n")
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "more.py").write_bytes(b"password = 2\n")
    (source / "pkg").mkdir()
    (source / "pkg" / "a.py").write_bytes(CLEAN)
    (source / "alias.py").symlink_to("pkg/a.py")
    (source / "out.py").symlink_to(tmp_path / "secret.py")
    (source / "out").symlink_to(tmp_path / "secrets")
    (source / "out-to-nothing.py").symlink_to(tmp_path / "nothing.py")
    (source / "dangling.py").symlink_to("nothing.py")
    (source / "self.py").symlink_to("self.py")
    (source / "ping.py").symlink_to("pong.py")
    (source / "pong.py").symlink_to("ping.py")
    (source / "pkg" / "up").symlink_to("..")
    (source / "pkg" / "same").symlink_to(".")
    inventory = take_inventory(source, folder)
    assert frozen(folder, inventory) == {"pkg/a.py": CLEAN}
    assert codes(inventory) == {
        "dangling.py": "link-dangling",
        "out": "link-outside",
        "out-to-nothing.py": "link-outside",
        "out.py": "link-outside",
        "ping.py": "link-loop",
        "pkg/same": "link-loop",
        "pkg/up": "link-loop",
        "pong.py": "link-loop",
        "self.py": "link-loop",
    }


def test_nothing_tells_where_the_folder_lies(source: Path, folder: RunFolder, tmp_path: Path) -> None:
    (source / "a.py").write_bytes(CLEAN)
    (source / "out.py").symlink_to(tmp_path / "secret.py")
    inventory = take_inventory(source, folder)
    assert str(tmp_path) not in repr(inventory)


def test_binary_and_oversized_python_files_are_findings(source: Path, folder: RunFolder) -> None:
    (source / "a.py").write_bytes(CLEAN)
    (source / "binary.py").write_bytes(b"\x7fELF\0\0")
    (source / "utf16.py").write_bytes("x = 1\n".encode("utf-16"))
    (source / "late-nul.py").write_bytes(b"#" * 20_000 + b"\0\n")
    (source / "huge.py").write_bytes(b"#" * (1 << 20) + b"\n")
    with open(source / "sparse.py", "wb") as file:
        file.truncate(1 << 40)
    inventory = take_inventory(source, folder)
    assert inventory.python == ["a.py"]
    assert codes(inventory) == {
        "binary.py": "binary",
        "huge.py": "too-large",
        "late-nul.py": "binary",
        "sparse.py": "too-large",
        "utf16.py": "binary",
    }


def test_a_file_of_exactly_the_limit_is_reviewed(source: Path, folder: RunFolder) -> None:
    (source / "a.py").write_bytes(b"#" * ((1 << 20) - 1) + b"\n")
    assert take_inventory(source, folder).python == ["a.py"]


def test_odd_names_and_contents_are_reviewed(source: Path, folder: RunFolder) -> None:
    names = ["-rf.py", "@args.py", "a b.py", "new\nline.py", "quo\"te's.py", "tab\t.py", "ünï✓.py", "back\\slash.py"]
    for name in names:
        (source / name).write_bytes(CLEAN)
    (source / "empty.py").write_bytes(b"")
    (source / "latin.py").write_bytes(b"x = '\xe9'\n")
    inventory = take_inventory(source, folder)
    assert inventory.python == sorted([*names, "empty.py", "latin.py"])
    assert inventory.findings == []


def test_a_name_that_is_not_utf8_is_a_finding_that_can_be_printed(source: Path, folder: RunFolder) -> None:
    (source / "a.py").write_bytes(CLEAN)
    with open(os.fsencode(source) + b"/caf\xe9.py", "wb") as file:
        file.write(CLEAN)
    inventory = take_inventory(source, folder)
    assert inventory.python == ["a.py"]
    assert [finding.code for finding in inventory.findings] == ["bad-name"]
    assert inventory.findings[0].path.encode("utf-8") == b"caf\\udce9.py"


def test_what_cannot_be_opened_as_it_was_seen_is_a_finding(
    source: Path, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between looking and opening a file is gone, a file became a pipe, a folder a link; one may not be read."""
    for name in ("a.py", "closed.py", "gone.py", "pipe.py"):
        (source / name).write_bytes(CLEAN)
    (source / "pkg").mkdir()
    real_open = os.open

    def open_after_a_change(path: str | Path, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if path == "closed.py":  # permissions do not bind root, who may be running this
            raise PermissionError(errno.EACCES, "Permission denied", path)
        if path == "gone.py":
            (source / "gone.py").unlink()
        elif path == "pipe.py":
            (source / "pipe.py").unlink()
            os.mkfifo(source / "pipe.py")
        elif path == "pkg":
            (source / "pkg").rmdir()
            (source / "pkg").symlink_to("/")
        return real_open(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", open_after_a_change)
    inventory = take_inventory(source, folder)
    assert inventory.python == ["a.py"]
    assert codes(inventory) == dict.fromkeys(["closed.py", "gone.py", "pipe.py", "pkg"], "unreadable")
    assert "Permission denied" in inventory.findings[0].message


def test_folders_of_tools_are_skipped_and_named(source: Path, folder: RunFolder) -> None:
    for name in (".git", "pkg/__pycache__", "node_modules", ".venv", "kept"):
        (source / name).mkdir(parents=True)
        (source / name / "a.py").write_bytes(CLEAN)
    inventory = take_inventory(source, folder)
    assert inventory.python == ["kept/a.py"]
    assert inventory.skipped == [".git", ".venv", "node_modules", "pkg/__pycache__"]


def test_depth_is_bounded(source: Path, folder: RunFolder) -> None:
    (source / "a.py").write_bytes(CLEAN)
    (source / "1" / "2" / "3").mkdir(parents=True)
    (source / "1" / "2" / "b.py").write_bytes(CLEAN)
    inventory = take_inventory(source, folder, Limits(depth=2))
    assert inventory.python == ["1/2/b.py", "a.py"]
    assert codes(inventory) == {"1/2/3": "too-deep"}


def test_too_much_is_an_error_that_says_what_to_do(source: Path, folder: RunFolder) -> None:
    for number in range(4):
        (source / f"{number}.py").write_bytes(CLEAN)
    with pytest.raises(ReviewError, match="more than 3 files and folders; review one of its subfolders"):
        take_inventory(source, folder, Limits(files=3))
    with pytest.raises(ReviewError, match="larger than 20 bytes together"):
        take_inventory(source, folder, Limits(total_bytes=20))
    assert list(folder.path.iterdir()) == []


def test_nothing_to_review_is_an_error_that_says_why(source: Path, folder: RunFolder) -> None:
    with pytest.raises(ReviewError, match="holds nothing to review"):
        take_inventory(source, folder)
    (source / "a.md").write_bytes(b"")
    with pytest.raises(ReviewError, match="no Python file among the 1 file of"):
        take_inventory(source, folder)
    (source / "a.py").write_bytes(b"\0")
    with pytest.raises(ReviewError, match="binary"):
        take_inventory(source, folder)


def test_a_folder_that_is_gone_is_an_error_without_its_path(source: Path, folder: RunFolder) -> None:
    source.rmdir()
    with pytest.raises(ReviewError, match=r"^the folder cannot be read \(No such file or directory\)") as caught:
        take_inventory(source, folder)
    assert str(source) not in str(caught.value)
