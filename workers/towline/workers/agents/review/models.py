"""What the parts of a review hand to each other, and what stands in its artifacts.

Promises small frozen values: every list is bounded by `Limits`, every path is relative to the reviewed folder
with `/` between its parts, no member holds an absolute path. A count is always exact, also where the list
beside it was cut.
"""

from collections.abc import Sequence
from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

Severity = Literal["error", "warning", "note"]
ToolName = Literal["inventory", "ruff", "compile"]
FixKind = Literal["safe", "unsafe", "none"]


class ReviewError(Exception):
    """The review cannot go on and trying again would not help. The message says why and what to do."""


class Limits(Struct, frozen=True):
    """How much one review takes on."""

    files: int = 5000
    depth: int = 64
    file_bytes: int = 1 << 20
    total_bytes: int = 256 << 20
    findings_per_file: int = 100
    findings_per_batch: int = 500


LIMITS = Limits()


class Source(Struct, frozen=True):
    """What to review, named in exactly one way.

    `path`: a folder on the worker's machine, absolute, below an allowed root. `upload`: an uploaded zip or tar.gz.
    """

    path: str | UnsetType = UNSET
    upload: Annotated[str, Meta(pattern="^upl_")] | UnsetType = UNSET

    def __post_init__(self) -> None:
        if (self.path is UNSET) == (self.upload is UNSET):
            raise ValueError("a source is either a path or an upload")


_ONE_WAY: Final = {"oneOf": [{"required": ["path"]}, {"required": ["upload"]}]}


class ReviewInput(Struct, frozen=True):
    """What a start of `review` takes."""

    source: Annotated[Source, Meta(extra_json_schema=_ONE_WAY)]


class Finding(Struct, frozen=True, omit_defaults=True):
    """One thing a tool has to say about one place. `line` and `column` count from 1; 0 is the whole file."""

    path: str
    tool: ToolName
    code: str
    severity: Severity
    message: str
    line: int = 0
    column: int = 0
    fix: FixKind = "none"


class LanguageCount(Struct, frozen=True):
    """How much there is of one language, told by the file's suffix."""

    files: int
    size_bytes: int


class Inventory(Struct, frozen=True):
    """What the folder held when it was read, once.

    `python` names the files that the tools run on, in order; `copy` names their frozen copy in the run's
    folder, and `digest` (`sha256:` + hex over names and contents) says what exactly was reviewed. `skipped`
    are folders that no review enters, such as `.git`.
    """

    digest: str
    copy: str
    python: list[str]
    python_bytes: int
    languages: dict[str, LanguageCount]
    skipped: list[str]
    findings: list[Finding]

    @property
    def files(self) -> int:
        return sum(count.files for count in self.languages.values())


class ToolReport(Struct, frozen=True):
    """What one tool said about one batch of files.

    `counts` and `safe_fixes` cover everything that was said; `findings` may hold less, cut at the limits.
    """

    tool: ToolName
    version: str
    files: int
    counts: dict[str, int]
    safe_fixes: int
    findings: list[Finding]

    @property
    def summary(self) -> str:
        """One line for the log."""
        return f"{self.tool}: {plural(sum(self.counts.values()), 'finding')} in {plural(self.files, 'file')}"


class PatchFile(Struct, frozen=True):
    """How much the patch changes in one file."""

    path: str
    added: int
    removed: int


class Patch(Struct, frozen=True):
    """The proposed change. `sha256` (hex) is of the patch's bytes; `overlay` names the changed files' copy."""

    sha256: str
    overlay: str
    size_bytes: int
    files: list[PatchFile]

    @property
    def added(self) -> int:
        return sum(file.added for file in self.files)

    @property
    def removed(self) -> int:
        return sum(file.removed for file in self.files)


class Verification(Struct, frozen=True):
    """The tools' word on the changed copy, compared with their word on the original.

    `more` holds every code that is now found more often, with the counts before and after: a fix may bring to
    light what a finding hid. `passed` is false only if one of them says that code is broken, or if safe fixes
    are left.
    """

    before: int
    after: int
    safe_fixes_left: int
    more: dict[str, tuple[int, int]]

    @property
    def passed(self) -> bool:
        broken = any(severity_of(code) == "error" for code in self.more)
        return not broken and self.safe_fixes_left == 0


def severity_of(code: str) -> Severity:
    """How grave a tool's code is: an error does not compile, names what does not exist, or broke the tool."""
    if code.endswith("Error") or code.startswith(("E9", "F82")):
        return "error"
    return "error" if code in ("invalid-syntax", "tool-failed", "crash") else "warning"


def plural(count: int, noun: str) -> str:
    """`3 files`, `1 file`, `12,000 files`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def total_counts(reports: Sequence[ToolReport]) -> dict[str, int]:
    """Findings by code over all reports, most frequent first, then by name."""
    total: dict[str, int] = {}
    for report in reports:
        for code, count in report.counts.items():
            total[code] = total.get(code, 0) + count
    return dict(sorted(total.items(), key=lambda item: (-item[1], item[0])))


def compare(before: Sequence[ToolReport], after: Sequence[ToolReport]) -> Verification:
    """What the tools say about the changed copy (`after`) against what they said about the original."""
    old, new = total_counts(before), total_counts(after)
    return Verification(
        before=sum(old.values()),
        after=sum(new.values()),
        safe_fixes_left=sum(report.safe_fixes for report in after),
        more={code: (old.get(code, 0), count) for code, count in new.items() if count > old.get(code, 0)},
    )
