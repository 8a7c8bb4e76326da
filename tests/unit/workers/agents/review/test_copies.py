"""Copies are complete or absent, whatever ends the building of one."""

from pathlib import Path

import pytest

from towline.workers.agents.review.copies import RunFolder, write_file
from towline.workers.agents.review.models import ReviewError


def test_a_kept_copy_stands_under_its_name(folder: RunFolder) -> None:
    with folder.building() as built:
        write_file(built, "pkg/a.py", b"x\n")
        assert folder.keep(built, "copy-1") == "copy-1"
    assert (folder.get("copy-1") / "pkg" / "a.py").read_bytes() == b"x\n"
    assert [path.name for path in folder.path.iterdir()] == ["copy-1"]


def test_a_copy_that_failed_leaves_nothing(folder: RunFolder) -> None:
    def fail() -> None:
        with folder.building() as built:
            write_file(built, "a.py", b"x\n")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert list(folder.path.iterdir()) == []


def test_an_attempt_that_died_does_not_hinder_the_next(folder: RunFolder) -> None:
    killed = folder.building()
    write_file(killed.__enter__(), "a.py", b"half")
    with folder.building() as built:
        write_file(built, "a.py", b"whole\n")
        folder.keep(built, "copy-1")
    assert (folder.get("copy-1") / "a.py").read_bytes() == b"whole\n"
    killed.__exit__(None, None, None)


def test_the_second_of_two_attempts_finds_the_copy_made(folder: RunFolder) -> None:
    with folder.building() as first, folder.building() as second:
        for built in (first, second):
            write_file(built, "a.py", b"x\n")
            folder.keep(built, "copy-1")
    assert [path.name for path in folder.path.iterdir()] == ["copy-1"]


def test_tidying_keeps_only_what_is_named(folder: RunFolder) -> None:
    for name in ("frozen-1", "fixed-1"):
        with folder.building() as built:
            write_file(built, "a.py", b"x\n")
            folder.keep(built, name)
    folder.tidy(keep="fixed-1")
    assert [path.name for path in folder.path.iterdir()] == ["fixed-1"]
    folder.tidy(keep=None)
    folder.tidy(keep=None)
    assert not folder.path.exists()


def test_the_folder_lies_where_the_environment_says(tmp_path: Path) -> None:
    assert RunFolder.of_run("run_1", {"TOWLINE_WORK_DIR": str(tmp_path)}).path == tmp_path / "run_1"
    assert RunFolder.of_run("run_1", {}).path.parts[-2:] == ("towline-work", "run_1")


@pytest.mark.parametrize("name", ["", "..", ".", "a/b", "/etc", "a\0", "-x", "a" * 129])
def test_a_name_cannot_lead_elsewhere(name: str, folder: RunFolder) -> None:
    with pytest.raises(ReviewError):
        RunFolder.of_run(name, {})
    with pytest.raises(ReviewError):
        folder.get(name)


def test_only_the_owner_may_look(folder: RunFolder) -> None:
    with folder.building() as built:
        assert built.stat().st_mode & 0o77 == 0
    assert folder.path.stat().st_mode & 0o77 == 0


def test_a_folder_laid_out_by_somebody_else_is_refused(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.path.mkdir(parents=True)
    owner = folder.path.stat().st_uid
    monkeypatch.setattr("os.geteuid", lambda: owner + 1)
    with pytest.raises(ReviewError, match="TOWLINE_WORK_DIR"):
        folder.building().__enter__()
