"""The demo as a person runs it: on a folder of their own, asked on a terminal, interrupted in the middle."""

import contextlib
import os
import pty
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.dev import TOWLINE, lives

pytestmark = pytest.mark.processes

DEMO = Path(__file__).resolve().parents[2] / "deploy" / "demo"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small project in which ruff finds something to fix."""
    folder = tmp_path / "project"
    folder.mkdir()
    for number in range(35):
        lines = [f"def f{n}(x):\n    if x == None:\n        return {n}\n    return x\n\n" for n in range(40)]
        (folder / f"module_{number}.py").write_text("import sys, os\nimport json\n\n" + "\n".join(lines))
    return folder


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Reports of these demos do not pile up; a short name, since a socket lies below it."""
    made = Path("/tmp") / f"tl{os.getpid()}"
    made.mkdir(mode=0o700)
    monkeypatch.setenv("TMPDIR", str(made))
    yield
    shutil.rmtree(made)


def figure(output: str, name: str) -> int:
    found = re.search(rf"^{name} +(\d+)", output, re.MULTILINE)
    assert found, output
    return int(found[1])


def nothing_runs() -> bool:
    """No process of ours has the demo's temporary folder on its command line."""
    ours = os.environ["TMPDIR"]
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if lives(process) and any(ours in part for part in process.cmdline()):
                return False
    return True


def test_it_ends_with_a_table_without_gaps_or_duplicates(folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.iterdir()}
    demo = subprocess.run([DEMO, folder, "--yes"], capture_output=True, text=True, timeout=300, check=False)
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert re.search(r"holds the run and is killed: kill -9 \d+", demo.stdout)
    assert re.search(r"run\.taken_over +taken over by", demo.stdout)
    assert (figure(demo.stdout, "gaps"), figure(demo.stdout, "duplicates"), figure(demo.stdout, "altered")) == (0, 0, 0)
    assert figure(demo.stdout, "repeated by the crash") >= 1
    assert figure(demo.stdout, "replayed") >= 1
    report = re.search(r"are in (\S+)$", demo.stdout, re.MULTILINE)
    assert report
    names = {path.name for path in Path(report[1]).iterdir()}
    assert {"review.md", "findings.json", "fixes.patch", "verification.md"} <= names
    assert {path: path.read_bytes() for path in folder.iterdir()} == before, "the reviewed folder is never written to"
    assert nothing_runs()


def test_a_person_is_shown_the_proposal_and_may_say_no(folder: Path) -> None:
    terminal, theirs = pty.openpty()
    with subprocess.Popen([*TOWLINE, "demo", folder], stdin=theirs, stdout=subprocess.PIPE, text=True) as demo:
        os.close(theirs)
        assert demo.stdout is not None
        said = ""
        while "Approve? [y/N] " not in said:
            read = demo.stdout.read(1)
            assert read, said
            said += read
        for words in ("will do", "at risk", "rollback", "digest", "fixes.patch"):
            assert words in said
        os.write(terminal, b"n\n")
        said += demo.stdout.read()
    os.close(terminal)
    assert demo.returncode == 0, said
    assert "Nothing was applied" in said
    assert figure(said, "gaps") == 0
    assert nothing_runs()


def test_ctrl_c_in_the_middle_leaves_nothing_running(folder: Path) -> None:
    with subprocess.Popen(
        [*TOWLINE, "demo", folder, "--yes"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "is killed" in line:
                break
        demo.send_signal(signal.SIGINT)
        _, error = demo.communicate(timeout=60)
    assert demo.returncode == 130
    assert not error
    assert nothing_runs()
