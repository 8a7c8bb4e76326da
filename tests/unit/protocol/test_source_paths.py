"""The check of `input.source.path`: what is below a root passes, everything else gets words and no oracle."""

import os
from pathlib import Path

import pytest

from towline.protocol.source_paths import OUTSIDE, SourcePathError, allowed_roots, resolve_source


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "allowed"
    (folder / "project").mkdir(parents=True)
    (folder / "project" / "a.py").write_text("x = 1\n")
    return folder


def refusal(path: str | Path, *roots: Path) -> str:
    with pytest.raises(SourcePathError) as caught:
        resolve_source(str(path), [str(root) for root in roots])
    return str(caught.value)


def test_the_root_itself_and_a_folder_below_it_pass(root: Path) -> None:
    assert resolve_source(str(root), [str(root)]) == root
    assert resolve_source(f"{root}/project/", [str(root)]) == root / "project"


def test_a_link_is_followed_to_its_real_place(root: Path, tmp_path: Path) -> None:
    (tmp_path / "shortcut").symlink_to(root / "project")
    assert resolve_source(str(tmp_path / "shortcut"), [str(root)]) == root / "project"
    (tmp_path / "root-link").symlink_to(root)
    assert resolve_source(str(root / "project"), [str(tmp_path / "root-link")]) == root / "project"


def test_a_link_that_leads_out_is_refused(root: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (root / "out").symlink_to(tmp_path / "secret")
    (root / "out-to-nothing").symlink_to(tmp_path / "nothing")
    assert refusal(root / "out", root) == OUTSIDE
    assert refusal(root / "out-to-nothing", root) == OUTSIDE


def test_a_refusal_does_not_tell_what_exists_outside(root: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    names = ["file", "folder", "loop", "dangling", "missing", "file/below", "folder/below", "loop/below"]
    assert {refusal(tmp_path / name, root) for name in names} == {OUTSIDE}


def test_a_sibling_that_begins_with_the_name_of_a_root_is_outside(root: Path, tmp_path: Path) -> None:
    (tmp_path / "allowed-not").mkdir()
    assert refusal(tmp_path / "allowed-not", root) == OUTSIDE


def test_inside_a_root_the_reason_is_told(root: Path) -> None:
    (root / "loop").symlink_to(root / "loop")
    assert "no such folder" in refusal(root / "missing", root)
    assert "not a folder" in refusal(root / "project" / "a.py", root)
    assert "cannot be read" in refusal(root / "project" / "a.py" / "below", root)
    assert "leads back to itself" in refusal(root / "loop", root)


@pytest.mark.parametrize(
    "path",
    ["", "relative", "./project", "~", "a\0b", "/a/../b", "/..", "/" + "x" * 5000, "/\ud800"],
)
def test_what_is_no_absolute_plain_path_is_refused(path: str, root: Path) -> None:
    assert "give the absolute path" in refusal(path, root)


def test_dots_do_not_walk_out_and_back_in(root: Path) -> None:
    assert "'..'" in refusal(f"{root}/../allowed/project", root)


def test_no_message_carries_a_path(root: Path, tmp_path: Path) -> None:
    for path in (tmp_path, root / "missing", root / "project" / "a.py", root / "project" / "a.py" / "x"):
        assert str(tmp_path) not in refusal(path, root)


def test_without_a_usable_root_nothing_passes(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert refusal(root) == OUTSIDE
    assert refusal(root, tmp_path / "missing") == OUTSIDE
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SourcePathError):  # a relative root would mean something else in every process
        resolve_source(str(root), ["allowed"])


def test_a_name_with_odd_characters_passes(root: Path) -> None:
    odd = root / "-a b\nü"
    odd.mkdir()
    assert resolve_source(str(odd), [str(root)]) == odd


def test_roots_come_from_the_environment() -> None:
    assert allowed_roots({}) == ()
    assert allowed_roots({"TOWLINE_ALLOW_PATHS": ""}) == ()
    assert allowed_roots({"TOWLINE_ALLOW_PATHS": f"/a{os.pathsep}{os.pathsep}/b c"}) == ("/a", "/b c")
