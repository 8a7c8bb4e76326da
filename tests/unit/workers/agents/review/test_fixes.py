"""The diff is exact, it is what was approved, and only a copy is changed."""

import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from towline.workers.agents.review import fixes, tools
from towline.workers.agents.review.copies import RunFolder
from towline.workers.agents.review.inventory import take_inventory
from towline.workers.agents.review.models import PatchFile, ReviewError

UNUSED = b"import os\n\nx = 1\n"

FILES: dict[str, bytes] = {
    "-dash.py": UNUSED,
    "a b.py": UNUSED,
    "clean.py": b"x = 1\n",
    "cookie.py": b"# -*- coding: latin-1 -*-\nimport os\nx = '\xe9'\n",
    "crlf.py": b"import os\r\nimport sys\r\n\r\nx = sys.path\r\n",
    "empty.py": b"",
    "formfeed.py": b"import os\n\x0c\nx = '\x1c\xc2\x85'\n",
    "mixed.py": b"import os\r\nx = 1\ny = 2\r\n",
    "new\nline\t.py": UNUSED,
    "no-newline.py": b"import os\nx = 1",
    "only.py": b"import os\n",
    'pkg/deep/q"uo\\te.py': UNUSED,
    "removed.py": b"-- a/x.py\nimport os\n",
    "string.py": b"import os\n\nx = '''\n--- a/x\n+++ b/x\n'''\n",
    "syntax.py": b"import os\ndef f(:\n",
    "ünï.py": b"import os\n\nx = '\xc3\xbc\xe2\x9c\x93'\n",
}


def git_apply(folder: Path, diff: bytes) -> None:
    """Apply a diff as a user would. Whitespace is left alone by default, so the result is exact."""
    done = subprocess.run(["git", "apply", "-"], cwd=folder, input=diff, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def fill(source: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(data)


def test_git_makes_of_the_original_exactly_what_was_proposed(source: Path, folder: RunFolder) -> None:
    fill(source, FILES)
    stock = take_inventory(source, folder)
    patch, diff = fixes.propose(folder, stock.copy, stock.python)
    fixed = contents(folder.get(fixes.apply(folder, stock.copy, patch, patch.sha256)))
    assert contents(source) == FILES
    git_apply(source, diff)
    assert contents(source) == fixed
    assert {path for path in FILES if fixed[path] != FILES[path]} == {file.path for file in patch.files}
    assert fixed["crlf.py"] == b"import sys\r\n\r\nx = sys.path\r\n"
    assert fixed["no-newline.py"] == b"x = 1\n"
    assert fixed["only.py"] == b""
    assert {fixed[path] == FILES[path] for path in ("clean.py", "cookie.py", "empty.py", "syntax.py")} == {True}


def test_the_fixed_copy_has_no_safe_fix_left_and_everything_else(source: Path, folder: RunFolder) -> None:
    fill(source, FILES)
    stock = take_inventory(source, folder)
    patch, _ = fixes.propose(folder, stock.copy, stock.python)
    fixed = folder.get(fixes.apply(folder, stock.copy, patch, patch.sha256))
    assert tools.lint(fixed, stock.python).safe_fixes == 0
    assert set(contents(fixed)) == set(FILES)


def test_the_diff_is_readable_and_counted(source: Path, folder: RunFolder) -> None:
    fill(source, {"pkg/a.py": UNUSED, "b.py": b"x = 1\n"})
    stock = take_inventory(source, folder)
    patch, diff = fixes.propose(folder, stock.copy, stock.python)
    assert diff == b"--- a/pkg/a.py\n+++ b/pkg/a.py\n@@ -1,3 +1,2 @@\n-import os\n \n x = 1\n"
    assert patch.files == [PatchFile("pkg/a.py", 0, 1)]
    assert (patch.added, patch.removed, patch.size_bytes) == (0, 1, len(diff))


def test_unsafe_fixes_are_not_proposed(source: Path, folder: RunFolder) -> None:
    fill(source, {"a.py": b"def f(x=[]):\n    return x\n"})
    stock = take_inventory(source, folder)
    assert tools.lint(source, stock.python).findings[0].fix == "unsafe"
    patch, diff = fixes.propose(folder, stock.copy, stock.python)
    assert (patch.files, diff) == ([], b"")


def test_proposing_and_applying_twice_gives_the_same(source: Path, folder: RunFolder) -> None:
    fill(source, FILES)
    stock = take_inventory(source, folder)
    patch, diff = fixes.propose(folder, stock.copy, stock.python)
    assert fixes.propose(folder, stock.copy, stock.python) == (patch, diff)
    names = {fixes.apply(folder, stock.copy, patch, patch.sha256) for _ in range(2)}
    assert sorted(path.name for path in folder.path.iterdir()) == sorted({stock.copy, patch.overlay, *names})


def test_only_the_approved_diff_is_applied(source: Path, folder: RunFolder) -> None:
    fill(source, {"a.py": UNUSED})
    stock = take_inventory(source, folder)
    patch, _ = fixes.propose(folder, stock.copy, stock.python)
    with pytest.raises(ReviewError, match="nothing was applied"):
        fixes.apply(folder, stock.copy, patch, "0" * 64)
    (folder.get(patch.overlay) / "a.py").write_bytes(b"import evil\n")
    with pytest.raises(ReviewError, match="nothing was applied"):
        fixes.apply(folder, stock.copy, patch, patch.sha256)
    assert sorted(path.name for path in folder.path.iterdir()) == sorted([stock.copy, patch.overlay])


def test_a_copy_made_elsewhere_is_an_error_that_says_so(folder: RunFolder) -> None:
    with pytest.raises(ReviewError, match="not on this machine"):
        fixes.propose(folder, "frozen-0", ["a.py"])


def test_equal_contents_have_no_diff() -> None:
    assert fixes.file_diff("a.py", b"x\r\n", b"x\r\n") == b""


LINES = st.lists(
    st.sampled_from([b"x\n", b"\n", b"x\r\n", b"\r\n", b"-- a\n", b"++ b\n", b"\\ no\n", b"\xff\n", b"\x0c\n"])
)
CONTENTS = st.builds(lambda lines, tail: b"".join(lines) + tail, LINES, st.sampled_from([b"", b"end", b"\r", b"\x85"]))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=CONTENTS, after=CONTENTS)
def test_any_diff_applies_exactly(tmp_path: Path, before: bytes, after: bytes) -> None:
    (tmp_path / "a.txt").write_bytes(before)
    if diff := fixes.file_diff("a.txt", before, after):
        git_apply(tmp_path, diff)
    assert (tmp_path / "a.txt").read_bytes() == after
