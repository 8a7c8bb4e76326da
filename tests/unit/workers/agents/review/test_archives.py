"""Uploaded archives: what is honest is unpacked whole, what is not ends with a word and leaves nothing outside."""

import gzip
import io
import stat
import struct
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from towline.workers.agents.review import archives
from towline.workers.agents.review.archives import FILES, unpack
from towline.workers.agents.review.models import ReviewError

FILES_OF = dict[str, bytes]
GOOD = {"a.py": b"x = 1\n", "pkg/sub/b.py": b"import os\n" * 1000, "pkg/ünï.txt": b"", "pkg/.hidden": b"\0\1"}


def zipped(files: Mapping[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", compression) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content, compression)
    return made.getvalue()


def tarred(files: Mapping[str, bytes], format_: int = tarfile.PAX_FORMAT) -> bytes:
    return tar_of(*((tarfile.TarInfo(name), content) for name, content in files.items()), format_=format_)


def tar_of(*entries: tuple[tarfile.TarInfo, bytes], format_: int = tarfile.PAX_FORMAT) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz", format=format_) as archive:
        for info, content in entries:
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return made.getvalue()


class Place:
    """Where an archive is unpacked: beside a file that must not change."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.target = folder / "in" / "target"
        self.target.parent.mkdir()
        (folder / "outside").write_bytes(b"untouched")

    def unpack(self, data: bytes) -> dict[str, bytes]:
        archive = self._folder / "archive"
        archive.write_bytes(data)
        unpack(archive, self.target)
        return {
            path.relative_to(self.target).as_posix(): path.read_bytes()
            for path in self.target.rglob("*")
            if path.is_file()
        }

    def refuses(self, data: bytes, said: str) -> None:
        with pytest.raises(ReviewError, match=said):
            self.unpack(data)
        assert sorted(path.name for path in self._folder.iterdir()) == ["archive", "in", "outside"]
        assert [path.name for path in self.target.parent.iterdir()] == ["target"]
        assert (self._folder / "outside").read_bytes() == b"untouched"
        assert not any(path.is_symlink() for path in self.target.rglob("*"))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize(
    "pack",
    [
        zipped,
        lambda files: zipped(files, zipfile.ZIP_STORED),
        tarred,
        lambda files: tarred(files, tarfile.GNU_FORMAT),
        lambda files: tarred(files, tarfile.USTAR_FORMAT),
    ],
    ids=["zip", "stored", "pax", "gnu", "ustar"],
)
def test_what_was_packed_comes_out(place: Place, pack: Callable[[FILES_OF], bytes]) -> None:
    assert place.unpack(pack(GOOD)) == GOOD


def test_folders_come_out_and_nothing_is_executable(place: Place, tmp_path: Path) -> None:
    folder, script = tarfile.TarInfo("./pkg"), tarfile.TarInfo("./pkg/run.sh")
    folder.type, script.mode = tarfile.DIRTYPE, 0o7777
    assert place.unpack(tar_of((folder, b""), (script, b"#!/bin/sh\n"))) == {"pkg/run.sh": b"#!/bin/sh\n"}
    assert not (place.target / "pkg" / "run.sh").stat().st_mode & 0o7111


def test_what_a_command_line_packs_comes_out(place: Place, tmp_path: Path) -> None:
    source = tmp_path / "in" / "source"
    source.mkdir()
    (source / "a.py").write_bytes(b"x = 1\n")
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        archive.add(source, arcname=".")
    (source / "a.py").unlink()
    source.rmdir()
    assert place.unpack(made.getvalue()) == {"a.py": b"x = 1\n"}


HOSTILE_NAMES = [
    ("../outside", "leads out"),
    ("a/../../outside", "leads out"),
    ("..", "leads out"),
    ("/etc/passwd", "absolute"),
    ("//x", "absolute"),
    ("C:/x", "absolute"),
    ("..\\outside", "character"),
    ("a\\b", "character"),
    ("x" * 2000, "1,024 bytes"),
    ("d/" + "x" * 300, "too long"),
]


@pytest.mark.parametrize(("name", "said"), HOSTILE_NAMES)
@pytest.mark.parametrize("pack", [zipped, tarred])
def test_a_hostile_name_ends_it(place: Place, pack: Callable[[FILES_OF], bytes], name: str, said: str) -> None:
    place.refuses(pack({"good.py": b"x", name: b"evil"}), said)


def test_a_name_with_nul_ends_it(place: Place) -> None:
    data = zipped({"good_evil": b"x"})
    place.refuses(data.replace(b"good_evil", b"good\0evil"), "character")


def test_dots_that_mean_nothing_are_a_name(place: Place) -> None:
    files = {"...": b"1", "a..b/..c": b"2", "%2e%2e/x": b"3", "CON": b"4"}
    assert place.unpack(zipped(files)) == files


@pytest.mark.parametrize(
    "kind",
    [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE],
)
def test_a_link_or_device_in_a_tar_ends_it(place: Place, kind: bytes) -> None:
    link = tarfile.TarInfo("link")
    link.type, link.linkname = kind, "../../outside"
    place.refuses(tar_of((link, b""), (tarfile.TarInfo("link/x"), b"evil")), "link or a special file")


@pytest.mark.parametrize("mode", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFSOCK])
def test_a_link_or_device_in_a_zip_ends_it(place: Place, mode: int) -> None:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        link = zipfile.ZipInfo("link")
        link.external_attr = (mode | 0o777) << 16
        archive.writestr(link, "../../outside")
    place.refuses(made.getvalue(), "link or a special file")


def test_a_name_that_comes_twice_ends_it(place: Place) -> None:
    for number, entries in enumerate(
        (
            ((tarfile.TarInfo("a"), b"1"), (tarfile.TarInfo("./a"), b"2")),
            ((tarfile.TarInfo("a"), b"1"), (tarfile.TarInfo("a/b"), b"2")),
            ((tarfile.TarInfo("a/b"), b"1"), (tarfile.TarInfo("a"), b"2")),
        )
    ):
        place.target = place.target.with_name(f"target{number}")
        with pytest.raises(ReviewError, match="twice"):
            place.unpack(tar_of(*entries))


@pytest.mark.parametrize("pack", [zipped, tarred])
def test_too_many_entries_end_it(place: Place, pack: Callable[[FILES_OF], bytes]) -> None:
    assert len(place.unpack(pack({f"f{n}": b"" for n in range(FILES)}))) == FILES
    place.target = place.target.with_name("again")
    with pytest.raises(ReviewError, match="more than 5,000"):
        place.unpack(pack({f"f{n}": b"" for n in range(FILES + 1)}))


@pytest.mark.parametrize("pack", [zipped, tarred])
def test_a_bomb_costs_no_more_than_the_limit(
    place: Place, pack: Callable[[FILES_OF], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "TOTAL_BYTES", 1_000_000)
    with pytest.raises(ReviewError, match="unpacks to more than"):
        place.unpack(pack({"small": b"x", "bomb": bytes(5_000_000)}))
    assert sum(path.stat().st_size for path in place.target.rglob("*")) < 2_000_000
    place.target = place.target.with_name("many")
    with pytest.raises(ReviewError, match="unpacks to more than"):
        place.unpack(pack({f"part{n}": bytes(300_000) for n in range(5)}))


def test_a_zip_that_lies_about_its_sizes_is_damaged(place: Place) -> None:
    data = zipped({"bomb": bytes(1_000_000)})
    place.refuses(data.replace(struct.pack("<I", 1_000_000), struct.pack("<I", 10)), "damaged")


def test_a_header_that_would_fill_memory_ends_it(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "TOTAL_BYTES", 1_000_000)
    monkeypatch.setattr(archives, "_TAR_SLACK_BYTES", 1_000_000)
    header = tarfile.TarInfo("long")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 50_000_000
    place.refuses(gzip.compress(header.tobuf(tarfile.GNU_FORMAT) + bytes(50_000_000)), "unpacks to more than")


def test_a_zip_with_a_monstrous_directory_is_not_even_read(place: Place) -> None:
    data = bytearray(zipped({"a": b"x"}))
    at = data.rfind(b"PK\x05\x06")
    struct.pack_into("<I", data, at + 12, 1 << 30)
    place.refuses(bytes(data), "more than 5,000")
    place.target = place.target.with_name("again")
    wide = bytes(data[:at]) + b"PK\x06\x07" + bytes(16) + bytes(data[at:])
    with pytest.raises(ReviewError, match="more than 5,000"):
        place.unpack(wide)


def test_what_is_encrypted_or_oddly_packed_is_named(place: Place) -> None:
    data = bytearray(zipped({"a": b"x"}))
    data[data.find(b"PK\x01\x02") + 8] |= 1
    place.refuses(bytes(data), "encrypted")
    place.target = place.target.with_name("again")
    with pytest.raises(ReviewError, match="unusual"):
        place.unpack(zipped({"a": b"x" * 100}, zipfile.ZIP_LZMA))


@pytest.mark.parametrize(
    "data",
    [b"", b"PK", b"<html>", b"\x7fELF", b"Rar!\x1a\x07", b"BZh9", tarred({"a": b"x"})[1:], gzip.compress(b"")[:1]],
    ids=["nothing", "half a zip", "a page", "a program", "rar", "bzip2", "a tail", "a byte"],
)
def test_what_is_no_archive_is_said(place: Place, data: bytes) -> None:
    place.refuses(data, "neither a zip nor a tar.gz")


@pytest.mark.parametrize("pack", [zipped, tarred])
def test_a_damaged_archive_ends_with_a_word_wherever_it_is_cut(place: Place, pack: Callable[[FILES_OF], bytes]) -> None:
    whole = pack(GOOD)
    for number, at in enumerate(range(4, len(whole) - 8, max(1, len(whole) // 60))):
        for broken in (whole[:at], whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :]):
            place.target = place.target.with_name(f"{number}-{len(broken)}")
            try:
                place.unpack(broken)
            except ReviewError:
                continue


def test_a_gzip_that_holds_no_tar_is_damaged(place: Place) -> None:
    place.refuses(gzip.compress(b"hello" * 1000), "damaged")
