"""ruff and the compiler, really run: on ordinary files and on files made to break them."""

import os
import sys
from pathlib import Path

import pytest

from towline.workers.agents.review import tools
from towline.workers.agents.review.compile_one import compile_source
from towline.workers.agents.review.models import Limits, ReviewError, ToolReport


def codes(report: ToolReport) -> list[tuple[str, str]]:
    return [(finding.path, finding.code) for finding in report.findings]


def write(source: Path, files: dict[str, bytes]) -> list[str]:
    for name, data in files.items():
        (source / name).write_bytes(data)
    return list(files)


def test_ruff_findings_have_place_severity_and_fix(source: Path) -> None:
    paths = write(source, {"a.py": b"import os\n\n\ndef f(x=[]):\n    return undefined\n", "b.py": b"x = 1\n"})
    report = tools.lint(source, paths)
    assert [(f.code, f.line, f.column, f.severity, f.fix) for f in report.findings] == [
        ("F401", 1, 8, "warning", "safe"),
        ("B006", 4, 9, "warning", "unsafe"),
        ("F821", 5, 12, "error", "none"),
    ]
    assert {finding.path for finding in report.findings} == {"a.py"}
    assert report.files == 2
    assert report.safe_fixes == 1
    assert report.version.startswith("ruff ")
    assert report.summary == "ruff: 3 findings in 2 files"


def test_the_order_follows_the_paths_and_paths_are_relative(source: Path) -> None:
    (source / "pkg").mkdir()
    write(source, {"z.py": b"import os\n", "pkg/a.py": b"import os\n"})
    assert codes(tools.lint(source, ["z.py", "pkg/a.py"])) == [("z.py", "F401"), ("pkg/a.py", "F401")]
    assert codes(tools.lint(source, ["pkg/a.py", "z.py"])) == [("pkg/a.py", "F401"), ("z.py", "F401")]


def test_a_copy_behind_a_link_still_gives_relative_paths(source: Path, tmp_path: Path) -> None:
    write(source, {"a.py": b"import os\n"})
    (tmp_path / "link").symlink_to(source)
    assert codes(tools.lint(tmp_path / "link", ["a.py"])) == [("a.py", "F401")]


def test_settings_in_the_reviewed_folder_have_no_say(source: Path) -> None:
    write(source, {"ruff.toml": b"lint.select = []\nexclude = ['*']\n", ".gitignore": b"*\n"})
    assert codes(tools.lint(source, write(source, {"a.py": b"import os\n"}))) == [("a.py", "F401")]


def test_settings_in_the_environment_have_no_say(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUFF_OUTPUT_FORMAT", "concise")
    monkeypatch.setenv("RUFF_OUTPUT_FILE", str(source / "captured"))
    assert codes(tools.lint(source, write(source, {"a.py": b"import os\n"}))) == [("a.py", "F401")]


def test_odd_names_are_no_options_and_no_patterns(source: Path) -> None:
    names = ["--config.py", "-x.py", "@a.py", "a b.py", "new\nline.py", "q\"uo'te.py", "ünï.py", "st*r[1]?.py"]
    paths = write(source, dict.fromkeys(names, b"import os\n"))
    assert codes(tools.lint(source, paths)) == [(name, "F401") for name in names]
    assert codes(tools.byte_compile(source, write(source, {"-c.py": b"x =\n"}))) == [("-c.py", "SyntaxError")]


def test_odd_contents_are_findings(source: Path) -> None:
    paths = write(
        source,
        {
            "cookie.py": b"# -*- coding: latin-1 -*-\nx = '\xe9'\n",
            "crlf.py": b"x = 1\r\ny = 2\r\n",
            "empty.py": b"",
            "latin.py": b"x = '\xe9'\n",
            "nul.py": b"x = 1\0\n",
            "syntax.py": b"def f(:\n",
        },
    )
    assert codes(tools.byte_compile(source, paths)) == [
        ("latin.py", "SyntaxError"),
        ("nul.py", "SyntaxError" if sys.version_info >= (3, 11, 4) else "ValueError"),
        ("syntax.py", "SyntaxError"),
    ]
    found = tools.lint(source, paths)
    assert {path for path, _ in codes(found)} == {"cookie.py", "latin.py", "nul.py", "syntax.py"}
    assert ("latin.py", "E902") in codes(found)
    assert ("syntax.py", "invalid-syntax") in codes(found)


def test_compiler_warnings_are_findings(source: Path) -> None:
    report = tools.byte_compile(source, write(source, {"a.py": b"x = 1\ny = x is 1\n"}))
    assert [(f.code, f.line, f.severity) for f in report.findings] == [("SyntaxWarning", 2, "warning")]


def test_compiling_executes_and_writes_nothing(source: Path) -> None:
    paths = write(source, {"a.py": b"open('ran', 'w')\nraise SystemExit\n"})
    write(source, {"json.py": b"raise SystemExit(9)\n", "sitecustomize.py": b"open('ran', 'w')\n"})
    assert tools.byte_compile(source, paths).findings == []
    assert sorted(os.listdir(source)) == ["a.py", "json.py", "sitecustomize.py"]


def test_ruff_writes_nothing_while_it_looks(source: Path) -> None:
    paths = write(source, {"a.py": b"import os\n"})
    tools.lint(source, paths)
    assert os.listdir(source) == ["a.py"]
    assert (source / "a.py").read_bytes() == b"import os\n"


@pytest.mark.parametrize("deep", [b"(" * 50_000, b"-" * 200_000 + b"1", b"x" + b".a" * 200_000, b"[" * 90 + b"]" * 90])
def test_a_file_that_is_nested_too_deep_costs_only_itself(source: Path, deep: bytes) -> None:
    paths = write(source, {"a.py": b"import os\n", "deep.py": deep + b"\n", "z.py": b"import os\n"})
    for report in (tools.lint(source, paths), tools.byte_compile(source, paths)):
        assert report.files == 3
        assert {finding.path for finding in report.findings} <= {"a.py", "deep.py", "z.py"}
    assert [path for path, code in codes(tools.lint(source, paths)) if code == "F401"] == ["a.py", "z.py"]


def test_a_file_that_crashes_ruff_is_found_and_named(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in = tmp_path / "ruff"
    stand_in.write_text(
        f'#!/bin/sh\ncase "$*" in *bad.py*) kill -SEGV $$;; *) exec "{tools.RUFF_PROGRAM}" "$@";; esac\n'
    )
    stand_in.chmod(0o755)
    monkeypatch.setattr(tools, "RUFF_PROGRAM", str(stand_in))
    paths = write(source, dict.fromkeys(("a.py", "b.py", "bad.py", "c.py", "d.py"), b"import os\n"))
    assert codes(tools.lint(source, paths)) == [
        ("a.py", "F401"),
        ("b.py", "F401"),
        ("bad.py", "tool-failed"),
        ("c.py", "F401"),
        ("d.py", "F401"),
    ]
    tools.fix(source, paths)
    assert {name: (source / name).read_bytes() for name in ("a.py", "bad.py")} == {
        "a.py": b"",
        "bad.py": b"import os\n",
    }


def test_a_ruff_that_does_not_run_is_no_finding_about_files(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "ruff"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(tools, "RUFF_PROGRAM", str(broken))
    tools.ruff_version.cache_clear()
    paths = write(source, {"a.py": b"x = 1\n"})
    with pytest.raises(tools.ToolFailed, match="exit code 3"):
        tools.lint(source, paths)
    monkeypatch.setattr(tools, "RUFF_PROGRAM", None)
    with pytest.raises(ReviewError, match="install the package ruff"):
        tools.lint(source, paths)
    tools.ruff_version.cache_clear()


def test_a_compiler_that_dies_or_does_not_answer_is_a_finding(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(source / "pipe.py")  # must not hold the compiler: it reads as empty
    report = tools.byte_compile(source, ["pipe.py", "missing.py"])
    assert codes(report) == [("missing.py", "crash")]
    monkeypatch.setattr(tools, "COMPILE_TIMEOUT_S", 0.0)
    report = tools.byte_compile(source, ["pipe.py"])
    assert codes(report) == [("pipe.py", "crash")]
    assert "no answer" in report.findings[0].message


def test_counts_are_exact_where_findings_are_cut(source: Path) -> None:
    paths = write(
        source, {"a.py": b"import os\nimport sys\nimport re\n", "b.py": b"import os\n", "c.py": b"import os\n"}
    )
    report = tools.lint(source, paths, Limits(findings_per_file=2, findings_per_batch=3))
    assert report.counts["F401"] == 5
    assert report.safe_fixes == sum(report.counts.values())
    assert [finding.path for finding in report.findings] == ["a.py", "a.py", "b.py"]


def test_no_file_is_a_batch_too(source: Path) -> None:
    assert tools.lint(source, []).findings == []
    assert tools.byte_compile(source, []).files == 0


def test_the_compiler_program_says_what_compile_says() -> None:
    assert compile_source(b"x = 1\n", "a.py") == []
    assert [said["code"] for said in compile_source(b"x = (\n", "a.py")] == ["SyntaxError"]
