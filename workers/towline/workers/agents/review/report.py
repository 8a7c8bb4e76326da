"""What a review writes for people (Markdown) and for programs (JSON).

Promises the same text for the same review, so that workflow code may call it; that file names and messages,
which come from the reviewed folder, cannot become markup; and that no absolute path is in it. Lists are cut at
a fixed length and say so; `findings.json` holds every finding that the tools' limits let through.
"""

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from towline.workers.agents.review.models import (
    Finding,
    Inventory,
    Patch,
    ToolReport,
    Verification,
    plural,
    severity_of,
    total_counts,
)

LISTED_FINDINGS: Final = 100
LISTED_FILES: Final = 50

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_FENCE: Final = re.compile(r"`+")


def findings_json(stock: Inventory, reports: Sequence[ToolReport]) -> bytes:
    """The findings for programs: what was reviewed, exact counts by code, and each finding that was kept."""
    findings = all_findings(stock, reports)
    return msgspec.json.format(
        msgspec.json.encode(
            {
                "digest": stock.digest,
                "tools": versions(reports),
                "files": len(stock.python),
                "counts": total_counts(reports),
                "findings_kept": len(findings),
                "findings": findings,
            }
        ),
        indent=1,
    )


def report_markdown(name: str, stock: Inventory, reports: Sequence[ToolReport]) -> str:
    """The report on the folder called `name`, before anything is proposed."""
    counts = total_counts(reports)
    kept = all_findings(stock, reports)
    grave = [finding for finding in kept if finding.severity == "error"]
    lines = [
        f"# Review of {code(name)}",
        "",
        headline(stock, reports) + ".",
        "",
        f"- Reviewed: {plural(len(stock.python), 'Python file')}, {stock.python_bytes:,} bytes, {code(stock.digest)}",
        f"- Tools: {', '.join(versions(reports))}",
        f"- Safe fixes on offer: {sum(report.safe_fixes for report in reports):,}",
        "",
        *_section("What the folder holds", _table(("language", "files", "bytes"), _languages(stock))),
        *_section("Not reviewed, or odd", _listed(stock.findings, LISTED_FINDINGS) + _skipped(stock)),
        *_section("Errors", _listed(grave, LISTED_FINDINGS)),
        *_section("Findings by code", _table(("code", "findings", "severity"), _codes(counts))),
        *_section("Files with most findings", _table(("file", "findings"), _files(kept))),
        *_section("Warnings", _listed([f for f in kept if f.severity == "warning"], LISTED_FINDINGS)),
    ]
    return "\n".join(lines)


def verification_markdown(name: str, patch: Patch, verdict: Verification) -> str:
    """What the tools say about the copy with the approved fixes."""
    word = "Passed" if verdict.passed else "Did not pass"
    lines = [
        f"# Verification of the fixes for {code(name)}",
        "",
        f"{word}: {plural(verdict.before, 'finding')} before, {verdict.after:,} after.",
        "",
        f"- Applied: {code('sha256:' + patch.sha256)}, {plural(len(patch.files), 'file')},"
        f" {plural(patch.added, 'line')} added, {patch.removed:,} removed",
        f"- Safe fixes left: {verdict.safe_fixes_left:,}",
        "",
        *_section(
            "Found more often than before",
            _table(
                ("code", "before", "after", "severity"),
                [(code(key), f"{a:,}", f"{b:,}", severity_of(key)) for key, (a, b) in sorted(verdict.more.items())],
            ),
        ),
        *_section(
            "Changed files",
            _table(
                ("file", "added", "removed"),
                [(code(file.path), f"{file.added:,}", f"{file.removed:,}") for file in patch.files[:LISTED_FILES]],
            )
            + _cut(len(patch.files), LISTED_FILES, "file"),
        ),
    ]
    return "\n".join(lines)


def headline(stock: Inventory, reports: Sequence[ToolReport]) -> str:
    """The review in one line."""
    counts = total_counts(reports)
    grave = sum(count for key, count in counts.items() if severity_of(key) == "error")
    left_out = sum(finding.severity != "note" for finding in stock.findings)
    return (
        f"{plural(sum(counts.values()), 'finding')} in {plural(len(stock.python), 'Python file')},"
        f" {plural(grave, 'error')} among them" + (f"; {left_out:,} not reviewed" if left_out else "")
    )


def all_findings(stock: Inventory, reports: Sequence[ToolReport]) -> list[Finding]:
    """Every finding that was kept, by file and place."""
    found = [*stock.findings, *(finding for report in reports for finding in report.findings)]
    return sorted(found, key=lambda f: (f.path, f.line, f.column, f.tool, f.code))


def versions(reports: Sequence[ToolReport]) -> list[str]:
    """The tools that spoke, each once."""
    return sorted({report.version for report in reports})


def code(text: str) -> str:
    """`text` as a code span that nothing in it can end, on one line, with control characters spelled out."""
    shown = _CONTROL.sub(lambda match: match.group().encode("unicode_escape").decode(), text)
    fence = "`" * (1 + max((len(run) for run in _FENCE.findall(shown)), default=0))
    pad = " " if len(fence) > 1 else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def _section(title: str, body: Sequence[str]) -> list[str]:
    return [f"## {title}", "", *body, ""] if body else []


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    if not rows:
        return []
    lines = [heads, ["---"] + ["---:"] * (len(heads) - 1), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


def _languages(stock: Inventory) -> list[tuple[str, str, str]]:
    biggest_first = sorted(stock.languages.items(), key=lambda item: (-item[1].files, item[0]))
    return [(name, f"{count.files:,}", f"{count.size_bytes:,}") for name, count in biggest_first]


def _codes(counts: dict[str, int]) -> list[tuple[str, str, str]]:
    return [(code(key), f"{count:,}", severity_of(key)) for key, count in counts.items()]


def _files(findings: Sequence[Finding]) -> list[tuple[str, str]]:
    of_path: dict[str, int] = {}
    for finding in findings:
        of_path[finding.path] = of_path.get(finding.path, 0) + 1
    most_first = sorted(of_path.items(), key=lambda item: (-item[1], item[0]))
    return [(code(path), f"{count:,}") for path, count in most_first[:20]]


def _skipped(stock: Inventory) -> list[str]:
    shown = [f"- {code(path)} not entered" for path in stock.skipped[:LISTED_FILES]]
    return shown + _cut(len(stock.skipped), LISTED_FILES, "folder")


def _listed(findings: Sequence[Finding], at_most: int) -> list[str]:
    shown = [f"- {_place(finding)} {code(finding.code)} {code(finding.message)}" for finding in findings[:at_most]]
    return shown + _cut(len(findings), at_most, "finding")


def _place(finding: Finding) -> str:
    return code(f"{finding.path}:{finding.line}:{finding.column}" if finding.line else finding.path)


def _cut(count: int, at_most: int, noun: str) -> list[str]:
    left = count - at_most
    return ["", f"… and {plural(left, noun)} more."] if left > 0 else []
