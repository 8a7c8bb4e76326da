"""Runs real tools on a batch of files: ruff, and byte-compilation.

Promises findings in a fixed order with paths relative to the copy, whatever the files are named or hold: a
file that a tool cannot bear becomes a finding, and the rest of its batch is still looked at. Tools run as child
processes with a bare environment and a time limit, read no settings from the reviewed files, write nothing
beside them and execute nothing of them.

Which files make a batch, and what runs at once, is the workflow's business.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final, Literal

import msgspec
from ruff import find_ruff_bin  # type: ignore[import-untyped]

from towline.workers.agents.review import compile_one
from towline.workers.agents.review.models import LIMITS, Finding, FixKind, Limits, ReviewError, ToolReport, severity_of

RULES: Final = "E4,E7,E9,F,W,B,UP,SIM,I"
"""ruff's rule families: likely faults, dated idioms, import order. Nothing about line length."""

TARGET_VERSION: Final = "py311"
"""The oldest Python that the reviewed code is taken to support: fixes may use what it has."""

RUFF_TIMEOUT_S: Final = 60.0
COMPILE_TIMEOUT_S: Final = 10.0

_RUFF_OPTIONS: Final = (
    *("check", "--isolated", "--no-cache", "--quiet", "--exit-zero", "--no-respect-gitignore"),
    *("--select", RULES, "--target-version", TARGET_VERSION),
)


def _find_ruff() -> str | None:
    try:
        return str(find_ruff_bin())
    except FileNotFoundError:
        return None


# Once, at import: the search reads sysconfig, whose first use must not happen on several threads at once.
RUFF_PROGRAM: Final = _find_ruff()


class ToolFailed(Exception):
    """The tool itself did not work. Another attempt may."""


class _Place(msgspec.Struct):
    row: int
    column: int


class _Fix(msgspec.Struct):
    applicability: Literal["safe", "unsafe", "display-only"]


class _Diagnostic(msgspec.Struct):
    """The members of ruff's JSON that we read."""

    filename: str
    message: str
    code: str | None = None
    location: _Place | None = None
    fix: _Fix | None = None


class _Said(msgspec.Struct):
    """One thing that `compile_one` prints."""

    code: str
    message: str
    line: int
    column: int


_decode_diagnostics: Final = msgspec.json.Decoder(list[_Diagnostic]).decode
_decode_said: Final = msgspec.json.Decoder(list[_Said]).decode


def lint(copy: Path, paths: Sequence[str], limits: Limits = LIMITS) -> ToolReport:
    """What ruff says about these files of a copy.

    Raises:
        ToolFailed: ruff cannot be run at all.
    """
    said = _by_path(copy, paths)
    findings = [finding for path in paths for finding in said.get(path, ())]
    return _report("ruff", ruff_version(), paths, findings, limits)


def byte_compile(copy: Path, paths: Sequence[str], limits: Limits = LIMITS) -> ToolReport:
    """What this Python's compiler says about these files of a copy, one process each."""
    findings = [finding for path in paths for finding in _compile_file(copy, path)]
    return _report("compile", f"CPython {sys.version.split()[0]}", paths, findings, limits)


def fix(copy: Path, paths: Sequence[str]) -> None:
    """Let ruff apply its safe fixes to these files, in place. A file that ruff cannot bear stays as it is."""
    _bearable(copy, paths, ("--fix-only",))


@cache
def ruff_version() -> str:
    """`ruff 1.2.3`, as the binary says it."""
    return _run_ruff(Path(os.sep), ("--version",)).decode("utf-8", "replace").strip()


def _by_path(copy: Path, paths: Sequence[str]) -> dict[str, list[Finding]]:
    found: dict[str, list[Finding]] = {}
    answers, unbearable = _bearable(copy, paths, ("--no-fix", "--output-format", "json"))
    for answer in answers:
        for diagnostic in _decode_diagnostics(answer):
            finding = _finding(copy, diagnostic)
            found.setdefault(finding.path, []).append(finding)
    for path, reason in unbearable.items():
        found[path] = [Finding(path, "ruff", "tool-failed", "error", reason)]
    return found


def _finding(copy: Path, diagnostic: _Diagnostic) -> Finding:
    code = diagnostic.code or "invalid-syntax"
    fix: FixKind = "none"
    if diagnostic.fix is not None and diagnostic.fix.applicability != "display-only":
        fix = diagnostic.fix.applicability
    place = diagnostic.location or _Place(0, 0)
    return Finding(
        path=os.path.relpath(diagnostic.filename, os.path.realpath(copy)),
        tool="ruff",
        code=code,
        severity=severity_of(code),
        message=diagnostic.message,
        line=place.row,
        column=place.column,
        fix=fix,
    )


def _bearable(copy: Path, paths: Sequence[str], options: Sequence[str]) -> tuple[list[bytes], dict[str, str]]:
    """Run ruff on all files at once; if that fails, on halves, until the file at fault stands alone."""
    if not paths:
        return [], {}
    try:
        # `./`: a name may begin with a dash or an @.
        command = (*_RUFF_OPTIONS, *options, "--", *(f"./{path}" for path in paths))
        return [_run_ruff(copy, command)], {}
    except ToolFailed as error:
        if len(paths) == 1:
            ruff_version()  # is it the file, or does ruff not run at all?
            return [], {paths[0]: str(error)}
    middle = len(paths) // 2
    left, left_failed = _bearable(copy, paths[:middle], options)
    right, right_failed = _bearable(copy, paths[middle:], options)
    return left + right, left_failed | right_failed


def _run_ruff(folder: Path, arguments: Sequence[str]) -> bytes:
    if RUFF_PROGRAM is None:
        raise ReviewError("the ruff program is not installed beside this worker; install the package ruff")
    try:
        done = _run([RUFF_PROGRAM, *arguments], folder, RUFF_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise ToolFailed(f"ruff did not end within {RUFF_TIMEOUT_S:g} s") from None
    if done.returncode != 0:
        raise ToolFailed(f"ruff ended with {_ending(done.returncode)}")
    return done.stdout


def _compile_file(copy: Path, path: str) -> list[Finding]:
    command = [sys.executable, "-I", "-S", "-B", "-X", "utf8", compile_one.__file__, f"./{path}"]
    try:
        done = _run(command, copy, COMPILE_TIMEOUT_S)
        said = _decode_said(done.stdout) if done.returncode == 0 else None
        ending = _ending(done.returncode)
    except subprocess.TimeoutExpired:
        said, ending = None, f"no answer within {COMPILE_TIMEOUT_S:g} s"
    if said is None:
        return [Finding(path, "compile", "crash", "error", f"the compiler did not survive this file: {ending}")]
    return [Finding(path, "compile", s.code, severity_of(s.code), s.message, s.line, s.column) for s in said]


def _run(command: Sequence[str], folder: Path, timeout_s: float) -> subprocess.CompletedProcess[bytes]:
    # Nothing of our environment: neither secrets nor variables that would change what a tool does.
    environment = {"PATH": os.defpath, "LANG": "C.UTF-8", "HOME": os.devnull}
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=timeout_s,
        check=False,
    )


def _ending(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _report(
    tool: Literal["ruff", "compile"], version: str, paths: Sequence[str], found: Sequence[Finding], limits: Limits
) -> ToolReport:
    counts: dict[str, int] = {}
    of_path: dict[str, int] = {}
    kept: list[Finding] = []
    for finding in found:
        counts[finding.code] = counts.get(finding.code, 0) + 1
        of_path[finding.path] = of_path.get(finding.path, 0) + 1
        if of_path[finding.path] <= limits.findings_per_file and len(kept) < limits.findings_per_batch:
            kept.append(finding)
    return ToolReport(
        tool=tool,
        version=version,
        files=len(paths),
        counts=dict(sorted(counts.items())),
        safe_fixes=sum(finding.fix == "safe" for finding in found),
        findings=kept,
    )
