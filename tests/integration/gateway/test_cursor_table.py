"""The cursor table of the contract, row by row, over every way to read a run's events.

A row is a cursor, made from those of a real log, and what must be answered. Pages know neither `limited` (their
`limit` is their own size) nor the position before their first event; all else is the same everywhere.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any, Final

import pytest
from msgspec.structs import replace

from tests.support.cursors import WAYS, Verdict, verdict
from tests.support.gateway import RunningGateway, token
from tests.support.trimmed import begun_anew, trim_run

pytestmark = pytest.mark.store

HEAD: Final = 12
FIRST: Final = 6
"""Where the trimmed log begins."""

At = Sequence[str]
Row = tuple[Callable[[At], Any], Verdict]


def rest(seq: int, until: int = HEAD) -> tuple[int, ...]:
    return tuple(range(seq, until + 1))


def other(cursor: str) -> str:
    seq, tag = cursor.split("-")
    return f"{seq}-{int(tag) ^ 1}"


def resumed(after: int, first_seq: int = 1) -> Verdict:
    return Verdict(recovery="resumed", seqs=rest(after + 1), head=HEAD, first_seq=first_seq)


def reset(code: str, first_seq: int = 1) -> Verdict:
    return Verdict(recovery="reset", recovery_code=code, seqs=rest(first_seq), head=HEAD, first_seq=first_seq)


def trimmed(after: int) -> Verdict:
    lost = (after + 1, FIRST - 1)
    return Verdict(
        recovery="snapshot", recovery_code="trimmed", lost=lost, seqs=rest(FIRST), head=HEAD, first_seq=FIRST
    )


def says(text: Any) -> Callable[[At], Any]:
    return lambda at: text


BAD: Final = Verdict(problem="bad_request", field="after")
MALFORMED: Final = (
    *("", " ", "x", "-1", "-0", "+4", "1.5", "4.0", "NaN", "nan", "inf", "Infinity", "1e3", "0x4", "04", "4_0", "4,5"),
    *("4-", "-4-4", "4--1", "4-x", "4-1-1", "4-01", "4-1.5", "0-0", "0-1", " 4", "4 ", "LATEST", "null", "true", "[]"),
    *("9007199254740992", "9007199254740992-1", "18446744073709551616", "4-4294967296", "4-99999999999", "9" * 400),
    *("４", "٤", "4\u00a0", "4-１", "4\t"),
)
"""Negative, 2^53, float, NaN, digits of other scripts, tags of more than 32 bits …"""

ROWS: Final[Mapping[str, Row]] = {
    "latest": (says("latest"), resumed(HEAD)),
    "0": (says("0"), resumed(0)),
    "bare": (says("4"), resumed(4)),
    "bare, the first": (says("1"), resumed(1)),
    "bare, at the head": (says(str(HEAD)), resumed(HEAD)),
    "tagged": (lambda at: at[4], resumed(4)),
    "tagged, at the head": (lambda at: at[HEAD], resumed(HEAD)),
    "ahead by one": (lambda at: f"{HEAD + 1}-{at[HEAD].split('-')[1]}", reset("ahead")),
    "ahead, bare": (says("40"), reset("ahead")),
    "ahead, the last seq there can be": (says("9007199254740991-4294967295"), reset("ahead")),
    "diverged": (lambda at: other(at[4]), reset("diverged")),
    "diverged, at the head": (lambda at: other(at[HEAD]), reset("diverged")),
    "diverged, another entry's tag": (lambda at: f"4-{at[5].split('-')[1]}", reset("diverged")),
}
TRIMMED: Final[Mapping[str, Row]] = {
    "latest": (says("latest"), resumed(HEAD, FIRST)),
    "0": (says("0"), trimmed(0)),
    "bare": (says("2"), trimmed(2)),
    "tagged, trimmed": (lambda at: at[FIRST - 2], trimmed(FIRST - 2)),
    "nothing is lost": (lambda at: at[FIRST - 1], resumed(FIRST - 1, FIRST)),
    "nothing is lost, bare": (says(str(FIRST - 1)), resumed(FIRST - 1, FIRST)),
    "the first that is left": (lambda at: at[FIRST], resumed(FIRST, FIRST)),
    "diverged": (lambda at: other(at[FIRST]), reset("diverged", FIRST)),
    "ahead": (says("40-1"), reset("ahead", FIRST)),
}


async def log_of(gateway: RunningGateway, *, is_trimmed: bool = False) -> tuple[str, At]:
    """A run with `HEAD` entries, and the cursor of each; with `is_trimmed` only those from `FIRST` on are left."""
    run, hand, at = await begun_anew(gateway, FIRST - 1, HEAD - FIRST)
    if is_trimmed:
        assert await trim_run(gateway, hand) == FIRST
    return run, at


def placed(way: str, answer: Verdict, at: At) -> Verdict:
    """The verdict without its position, which is checked here: it stands just before the first event."""
    before = answer.seqs[0] - 1 if answer.seqs else HEAD
    if way in ("page", "poll") and answer.seqs:
        assert answer.cursor is None
    elif before < (answer.first_seq or 1):
        assert answer.cursor in (at[before], f"{before}-0", str(before)), answer  # its entry may be gone
    else:
        assert answer.cursor == at[before], answer
    return replace(answer, cursor=None)


async def test_each_row(gateway: RunningGateway) -> None:
    run, at = await log_of(gateway)
    for way, (name, (cursor, expected)) in product(WAYS, ROWS.items()):
        answer = await verdict(gateway, way, run, cursor(at))
        assert placed(way, answer, at) == expected, (way, name)


async def test_each_row_of_a_trimmed_log(gateway: RunningGateway) -> None:
    run, at = await log_of(gateway, is_trimmed=True)
    for way, (name, (cursor, expected)) in product(WAYS, TRIMMED.items()):
        answer = await verdict(gateway, way, run, cursor(at))
        assert placed(way, answer, at) == expected, (way, name)


async def test_where_a_reader_without_a_cursor_begins(gateway: RunningGateway) -> None:
    run, at = await log_of(gateway)
    for way, after in (("socket", HEAD), ("sse", HEAD), ("sse-id", HEAD), ("page", 0), ("poll", 0)):
        assert placed(way, await verdict(gateway, way, run, None), at) == resumed(after), way


async def test_what_is_no_cursor(gateway: RunningGateway) -> None:
    run, _ = await log_of(gateway)
    for way, text in product(WAYS, MALFORMED):
        if way == "sse-id" and (not text or text.strip(" \t") != text):
            continue  # a header has no blanks at its ends, and a browser sends no empty one
        assert await verdict(gateway, way, run, text) == BAD, (way, text)


async def test_a_cursor_is_a_text(gateway: RunningGateway) -> None:
    run, _ = await log_of(gateway)
    async with gateway.socket() as wire:
        values: list[Any] = [4, 4.0, -1, 2**53, True, [], ["4"], {}, None]
        for value in values:
            await wire.send(op="subscribe", id="s", run=run, after=value)
            why = (await wire.until("problem"))["problem"]
            assert (why["code"], why["field"]) == ("bad_request", "after"), value


async def test_another_runs_cursor_and_a_run_that_is_not_the_callers(gateway: RunningGateway) -> None:
    run, at = await log_of(gateway)
    another, others = await log_of(gateway)
    missing = "run_" + "0" * 26
    for way in WAYS:
        assert placed(way, await verdict(gateway, way, run, others[4]), at) == reset("diverged"), way
    for way, cursor in product(WAYS, ("0", "latest", at[4], others[4], "40-1", "40", "x", "-1")):
        for asked, who in ((run, token("mallory")), (another, token("mallory")), (missing, token())):
            assert await verdict(gateway, way, asked, cursor, credential=who) == Verdict(problem="not_found"), (
                way,
                cursor,
            )


async def test_within_a_limit(gateway: RunningGateway) -> None:
    ways = ("socket", "sse", "sse-id")
    run, at = await log_of(gateway)
    snapshot = Verdict(recovery="snapshot", recovery_code="limited", head=HEAD, first_seq=1)
    rows: list[tuple[str, int, Verdict]] = [
        (at[4], HEAD - 4, resumed(4)),
        (at[4], 10_000, resumed(4)),
        (at[4], HEAD - 5, replace(snapshot, skipped=(5, 5), seqs=rest(6))),
        ("4", 1, replace(snapshot, skipped=(5, HEAD - 1), seqs=rest(HEAD))),
        ("0", 2, replace(snapshot, skipped=(1, HEAD - 2), seqs=rest(HEAD - 1))),
        ("latest", 1, resumed(HEAD)),
        (other(at[4]), 3, replace(reset("diverged"), skipped=(1, HEAD - 3), seqs=rest(HEAD - 2))),
        ("40", 3, replace(reset("ahead"), skipped=(1, HEAD - 3), seqs=rest(HEAD - 2))),
    ]
    for way, (after, limit, expected) in product(ways, rows):
        answer = await verdict(gateway, way, run, after, limit=limit)
        assert placed(way, answer, at) == expected, (way, after, limit)
    run, at = await log_of(gateway, is_trimmed=True)
    rows = [
        ("0", 3, replace(trimmed(0), skipped=(FIRST, HEAD - 3), seqs=rest(HEAD - 2))),
        (at[2], HEAD - FIRST + 1, trimmed(2)),
        (at[FIRST - 1], 1, replace(snapshot, first_seq=FIRST, skipped=(FIRST, HEAD - 1), seqs=rest(HEAD))),
    ]
    for way, (after, limit, expected) in product(ways, rows):
        answer = await verdict(gateway, way, run, after, limit=limit)
        assert placed(way, answer, at) == expected, (way, after, limit)
    for way, wrong in product(ways, (0, -1, 10_001)):
        refused = await verdict(gateway, way, run, "0", limit=wrong)
        assert (refused.problem, refused.field) == ("bad_request", "limit"), (way, wrong)


async def test_a_run_that_has_ended_and_one_that_was_deleted(gateway: RunningGateway) -> None:
    run = await gateway.start()
    hand = await gateway.hold(run)
    await hand.note(count=HEAD - 3)
    await hand.complete()
    at = ["0", *[str(entry.cursor) async for entry in gateway.store.entries(run)]]
    for way, (name, (cursor, expected)) in product(WAYS, ROWS.items()):
        if way == "sse-id" and cursor(at) == at[HEAD]:
            continue  # at the end of a closed run a stream has nothing to say: 204
        answer = await verdict(gateway, way, run, cursor(at))
        assert placed(way, answer, at) == expected, (way, name)
    root = gateway.as_("root", roles=["operator"])
    assert (await gateway.http.delete(f"/v1/runs/{run}", headers=root)).status_code == 204
    cursors = ("0", "latest", "4", at[4], other(at[4]), "40-1", "x", "-1", "9007199254740992")
    for way, after in product(WAYS, cursors):
        assert await verdict(gateway, way, run, after) == Verdict(problem="gone"), (way, after)
        foreign = await verdict(gateway, way, run, after, credential=token("mallory"))
        assert foreign == Verdict(problem="not_found"), (way, after)


async def test_the_run_itself_is_waited_for_behind_any_cursor(gateway: RunningGateway) -> None:
    run, at = await log_of(gateway)
    for cursor in ("0", "4", at[4], other(at[HEAD]), "40", other(at[4])):
        answer = await gateway.http.get(f"/v1/runs/{run}", params={"after": cursor, "wait_ms": 30_000})
        assert answer.json()["last_seq"] == HEAD, cursor
    for cursor in ("latest", at[HEAD], str(HEAD)):
        answer = await gateway.http.get(f"/v1/runs/{run}", params={"after": cursor, "wait_ms": 1})
        assert answer.json()["cursor"] == at[HEAD], cursor
    for text in MALFORMED:
        refused = (await gateway.http.get(f"/v1/runs/{run}", params={"after": text, "wait_ms": 30_000})).json()
        assert (refused["code"], refused["field"]) == ("bad_request", "after"), text
