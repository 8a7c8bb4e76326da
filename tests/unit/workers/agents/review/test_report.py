"""What people and programs read: complete, bounded, and deaf to what the reviewed files would like to say."""

import msgspec
import pytest

from towline.workers.agents.review.models import (
    Finding,
    Inventory,
    LanguageCount,
    Patch,
    PatchFile,
    ToolReport,
    Verification,
    compare,
    plural,
    severity_of,
    total_counts,
)
from towline.workers.agents.review.report import code, findings_json, headline, report_markdown, verification_markdown


def stock(*findings: Finding, python: int = 2) -> Inventory:
    return Inventory(
        digest="sha256:00",
        copy="frozen-00",
        python=[f"{number}.py" for number in range(python)],
        python_bytes=1234,
        languages={"Python": LanguageCount(python, 1234), "JSON": LanguageCount(1, 2)},
        skipped=[".git"],
        findings=list(findings),
    )


def said(*findings: Finding, extra: int = 0) -> ToolReport:
    counts: dict[str, int] = {}
    for finding in findings:
        counts[finding.code] = counts.get(finding.code, 0) + 1 + extra
    return ToolReport("ruff", "ruff 1.2.3", 2, counts, sum(f.fix == "safe" for f in findings), list(findings))


UNUSED = Finding("a.py", "ruff", "F401", "warning", "unused", 1, 8, "safe")
BROKEN = Finding("b.py", "ruff", "invalid-syntax", "error", "expected `)`", 3, 1)
LINK = Finding("out", "inventory", "link-outside", "note", "leads out")


def test_a_report_names_everything_that_was_found() -> None:
    text = report_markdown("pkg", stock(LINK), [said(UNUSED, BROKEN)])
    assert text.startswith("# Review of `pkg`\n\n2 findings in 2 Python files, 1 error among them.\n")
    for line in (
        "- Reviewed: 2 Python files, 1,234 bytes, `sha256:00`",
        "- Safe fixes on offer: 1",
        "| Python | 2 | 1,234 |",
        "- `out` `link-outside` `leads out`",
        "- `.git` not entered",
        "- `b.py:3:1` `invalid-syntax` `` expected `)` ``",
        "| `F401` | 1 | warning |",
        "- `a.py:1:8` `F401` `unused`",
    ):
        assert line in text.splitlines()


def test_what_is_absent_has_no_section() -> None:
    text = report_markdown("pkg", stock(), [said()])
    assert "## Errors" not in text
    assert text.startswith("# Review of `pkg`\n\n0 findings in 2 Python files, 0 errors among them.\n")


def test_long_lists_are_cut_and_say_so() -> None:
    many = [msgspec.structs.replace(UNUSED, line=line) for line in range(1, 251)]
    text = report_markdown("pkg", stock(), [said(*many)])
    assert "… and 150 findings more." in text
    assert "| `F401` | 250 | warning |" in text


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("a.py", "`a.py`"),
        ("a`b", "`` a`b ``"),
        ("``` <script>", "```` ``` <script> ````"),
        ("a\nb\r\t\0", "`a\\nb\\r\\t\\x00`"),
        ("a|b", "`a|b`"),
        ("a\u202egpj.py", "`a\\u202egpj.py`"),
    ],
)
def test_names_cannot_become_markup(text: str, span: str) -> None:
    assert code(text) == span


def test_a_hostile_name_stays_in_its_line() -> None:
    evil = msgspec.structs.replace(UNUSED, path="a.py\n# Owned\n", message="x\n\n<b>`|")
    assert "\n# Owned" not in report_markdown("pkg\n# Owned", stock(evil), [said(evil)])


def test_the_json_has_exact_counts_and_every_kept_finding() -> None:
    made = msgspec.json.decode(findings_json(stock(LINK), [said(UNUSED, extra=4), said(BROKEN)]))
    assert made["counts"] == {"F401": 5, "invalid-syntax": 1}
    assert made["findings_kept"] == 3
    assert [finding["path"] for finding in made["findings"]] == ["a.py", "b.py", "out"]
    assert made["findings"][0] == {
        "path": "a.py",
        "tool": "ruff",
        "code": "F401",
        "severity": "warning",
        "message": "unused",
        "line": 1,
        "column": 8,
        "fix": "safe",
    }


def test_the_same_review_gives_the_same_bytes() -> None:
    one, two = [said(UNUSED), said(BROKEN)], [said(BROKEN), said(UNUSED)]
    assert findings_json(stock(), one) == findings_json(stock(), two)
    assert report_markdown("pkg", stock(), one) == report_markdown("pkg", stock(), two)


def test_a_fix_that_brings_a_style_finding_to_light_passes() -> None:
    nested = Finding("a.py", "ruff", "SIM102", "warning", "nested if")
    verdict = compare([said(UNUSED)], [said(nested)])
    assert verdict == Verification(before=1, after=1, safe_fixes_left=0, more={"SIM102": (0, 1)})
    assert verdict.passed


def test_a_fix_that_breaks_code_or_leaves_fixes_does_not_pass() -> None:
    assert not compare([said(UNUSED)], [said(BROKEN)]).passed
    assert not compare([said(UNUSED)], [said(UNUSED)]).passed
    assert compare([said(BROKEN)], [said(BROKEN)]).passed


def test_the_verification_says_what_was_applied_and_found() -> None:
    patch = Patch("ab", "overlay-ab", 10, [PatchFile("a b|c.py", 1, 2)])
    text = verification_markdown("pkg", patch, compare([said(UNUSED)], [said(BROKEN)]))
    assert "Did not pass: 1 finding before, 1 after." in text
    assert "- Applied: `sha256:ab`, 1 file, 1 line added, 2 removed" in text
    assert "| `invalid-syntax` | 0 | 1 | error |" in text
    assert "| `a b\\|c.py` | 1 | 2 |" in text


def test_codes_have_a_severity() -> None:
    grave = ["E902", "F821", "SyntaxError", "MemoryError", "crash", "invalid-syntax", "tool-failed"]
    assert [severity_of(key) for key in grave] == ["error"] * len(grave)
    light = ["E701", "F401", "SIM102", "SyntaxWarning", "DeprecationWarning"]
    assert [severity_of(key) for key in light] == ["warning"] * len(light)


def test_counts_are_summed_most_frequent_first() -> None:
    assert list(total_counts([said(BROKEN), said(UNUSED, extra=1), said(UNUSED)]).items()) == [
        ("F401", 3),
        ("invalid-syntax", 1),
    ]


def test_words() -> None:
    assert [plural(1, "file"), plural(0, "file"), plural(12000, "file")] == ["1 file", "0 files", "12,000 files"]
    assert headline(stock(python=1), [said(UNUSED)]) == "1 finding in 1 Python file, 0 errors among them"
    binary = Finding("b.py", "inventory", "binary", "warning", "no Python")
    assert headline(stock(LINK, binary), [said()]).endswith("0 errors among them; 1 not reviewed")
