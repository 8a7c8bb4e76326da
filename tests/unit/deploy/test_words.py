"""Events and Runs in words: one line each, whatever is in them."""

import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from towline.deploy import words
from towline.protocol.client.views import SeenEvent, SeenRun
from towline.protocol.events import EVENTS

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def event(type_: str, data: Any, **members: Any) -> SeenEvent:
    fields = {"seq": 1, "ts": "2026-01-31T09:30:00.000Z", "type": type_, "actor": {}, "data": data, **members}
    return SeenEvent.of("r", fields)


@given(st.sampled_from([*EVENTS, "from.tomorrow"]), JSON)
def test_every_event_is_one_harmless_line(type_: str, data: Any) -> None:
    line = words.sentence(event(type_, data))
    assert line
    assert len(line) <= words.LINE_CHARS
    assert not [c for c in line if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp")]


@pytest.mark.parametrize(
    ("type_", "data", "line"),
    [
        ("run.taken_over", {"worker": "w2", "from": "w1"}, "taken over by w2 from w1"),
        ("tool.finished", {"summary": "ruff: 3 findings", "duration_ms": 812}, "ruff: 3 findings (0.8 s)"),
        (
            "run.failed",
            {
                "summary": "Stopped",
                "error": {"type": "Oops", "message": "no"},
                "abandoned": [{"name": "t", "attempt": 2}],
            },
            "failed: Stopped: Oops: no; effect unknown of t (attempt 2)",
        ),
        ("run.failed", {"summary": "no way", "error": {"type": "E", "message": "no way"}}, "failed: no way"),
        ("tool.failed", {"step": "1:0:lint:2", "error": {"type": "E", "message": "m"}}, "lint failed: E: m"),
        ("run.waiting", {"on": [{"kind": "signal", "name": "go"}]}, "waits for signal go"),
        ("run.completed", {"summary": "Done", "verified": False}, "completed: Done (NOT verified)"),
        ("progress.noted", {"text": "half", "percent": 50.0}, "50 % half"),
        ("from.tomorrow", {"a": 1}, 'from.tomorrow {"a":1}'),
    ],
)
def test_what_happened_is_said(type_: str, data: Any, line: str) -> None:
    assert words.sentence(event(type_, data)) == line


def test_what_may_not_be_read_says_so() -> None:
    assert "not shown" in words.sentence(event("tool.finished", None, redacted=True))


def test_hostile_text_cannot_steer_the_terminal() -> None:
    assert words.plain("a\x1b[2Jb\r\nc\u202ed") == "a�[2Jb c�d"
    assert words.plain_lines("one\n\x1b]0;x\x07two") == "one\n�]0;x�two"


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "0.0 s"), (59_900, "59.9 s"), (59_960, "1 min 0 s"), (3_725_000, "1 h 2 min"), (90_000_000, "1 d 1 h")],
)
def test_durations(ms: int, text: str) -> None:
    assert words.duration(ms) == text


def run(**fields: Any) -> SeenRun:
    return SeenRun.of({"id": "r", "status": "running", "last_seq": 1, "cursor": "1-1", **fields})


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "running"),
        ({"status": "waiting", "waiting_on": [{"kind": "approval"}]}, "waiting for approval"),
        ({"status": "paused", "status_detail": {"code": "budget"}}, "paused (budget)"),
        ({"stopping": {"deadline": "soon"}}, "running, stopping until soon"),
        ({"status": "completed", "outcome": {"verified": False}}, "completed, NOT verified"),
        ({"status": "cancelled", "status_detail": {"code": "user"}}, "cancelled"),
    ],
)
def test_a_status_says_why(fields: dict[str, Any], text: str) -> None:
    assert words.status_of(run(**fields)) == text
