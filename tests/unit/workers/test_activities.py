"""One attempt: what its code may ask for, and the one outcome it comes to."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from tests.support.waiting import wait_until
from towline.protocol.values import Usage
from towline.workers import activity
from towline.workers.activities import AttemptContext, run_attempt, summary_of
from towline.workers.commits import Attempt, AttemptFailed, AttemptFinished
from towline.workers.decisions import StartActivity
from towline.workers.machine import cut_short
from towline.workers.registry import Registry, Retry


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def attempt_of(fn: Any, *args: Any, number: int = 1, **options: Any) -> Attempt:
    made = Registry().activity(fn, **{"effect": "none", **options})
    start = StartActivity(step="1:0:it:1", activity=made, args=made.encode_args(args, {}))
    return Attempt(start, number)


def context_of(attempt: Attempt, **options: Any) -> AttemptContext:
    return AttemptContext(attempt, run="run-1", fencing_token="3-abc", **options)


async def outcome_of(threads: ThreadPoolExecutor, fn: Any, *args: Any, **options: Any) -> Any:
    attempt = attempt_of(fn, *args, **options)
    return await run_attempt(attempt, context_of(attempt), threads)


@pytest.fixture
def started() -> threading.Event:
    return threading.Event()


async def test_code_sees_its_attempt_on_the_loop_and_in_a_thread(threads: ThreadPoolExecutor) -> None:
    def ask() -> list[Any]:
        activity.usage(usd_micros=3)
        activity.usage(usd_micros=4, tokens=5)
        activity.heartbeat({"at": 1})
        return [activity.attempt, activity.idempotency_key, activity.fencing_token, activity.cancelled]

    async def ask_async() -> list[Any]:
        return ask()

    for fn in (ask, ask_async):
        outcome = await outcome_of(threads, fn, number=2)
        assert isinstance(outcome, AttemptFinished)
        assert outcome.result == b'[2,"run-1:1:0:it:1","3-abc",false]'
        assert outcome.usage == Usage(7, 5)
    with pytest.raises(RuntimeError, match="only inside a running activity"):
        activity.heartbeat()


async def test_artifacts_belong_to_their_attempt(threads: ThreadPoolExecutor) -> None:
    async def write() -> list[str]:
        return [activity.artifact("a", "x", "text/plain").id, activity.artifact("a", b"x", "text/plain").id]

    first = await outcome_of(threads, write, number=1)
    second = await outcome_of(threads, write, number=2)
    ids = [made.data.artifact for outcome in (first, second) for made in outcome.artifacts]
    assert len(set(ids)) == 4


async def test_an_error_is_told_with_its_class_and_whether_it_may_heal(threads: ThreadPoolExecutor) -> None:
    async def fails() -> None:
        raise FileNotFoundError("no such file")

    healing = await outcome_of(threads, fails)
    assert isinstance(healing, AttemptFailed)
    assert (healing.error.type, healing.error.message, healing.error.retryable) == (
        "FileNotFoundError",
        "no such file",
        True,
    )
    hopeless = await outcome_of(threads, fails, retry=Retry(never=(OSError,)))
    assert hopeless.error.retryable is False


async def test_arguments_that_do_not_decode_fail_once_and_for_all(threads: ThreadPoolExecutor) -> None:
    async def takes(number: int) -> None: ...

    outcome = await outcome_of(threads, takes, "seven")
    assert (outcome.error.type, outcome.error.retryable) == ("BadArguments", False)
    assert "1:0:it:1" in outcome.error.message


async def test_cancelling_reaches_async_code_at_its_await(threads: ThreadPoolExecutor) -> None:
    seen: list[str] = []

    async def waits() -> None:
        try:
            seen.append("begun")
            await asyncio.Event().wait()
        finally:
            seen.append("cleaned")

    task = asyncio.create_task(outcome_of(threads, waits))
    await wait_until(lambda: seen, "the attempt to begin")
    task.cancel()
    outcome = await task
    assert (outcome.error.type, seen) == ("Cancelled", ["begun", "cleaned"])


async def test_code_in_a_thread_is_told_and_waited_for(threads: ThreadPoolExecutor, started: threading.Event) -> None:
    ended: list[int] = []

    def polls() -> None:
        started.set()
        while not activity.cancelled:
            pass
        ended.append(1)

    task = asyncio.create_task(outcome_of(threads, polls))
    await asyncio.to_thread(started.wait)
    task.cancel()
    outcome = await task
    assert (outcome.error.type, ended) == ("Cancelled", [1])


async def test_a_heartbeat_in_a_thread_raises_once_the_step_is_given_up(
    threads: ThreadPoolExecutor, started: threading.Event
) -> None:
    beats: list[str] = []

    def beating() -> None:
        started.set()
        try:
            while True:
                activity.heartbeat()
        except asyncio.CancelledError:
            beats.append("stopped")
            raise

    task = asyncio.create_task(outcome_of(threads, beating))
    await asyncio.to_thread(started.wait)
    task.cancel()
    assert (await task).error.type == "Cancelled"
    assert beats == ["stopped"]


async def test_heartbeats_keep_an_attempt_alive_and_their_silence_ends_it(threads: ThreadPoolExecutor) -> None:
    async def lively() -> int:
        for n in range(8):
            activity.heartbeat(n)
            await asyncio.sleep(0.02)
        return 8

    async def silent() -> None:
        await asyncio.Event().wait()

    limit = timedelta(milliseconds=500)
    assert (await outcome_of(threads, lively, heartbeat=limit)).result == b"8"
    outcome = await outcome_of(threads, silent, heartbeat=timedelta(milliseconds=30))
    assert (outcome.error.type, outcome.error.message) == ("TimeoutError", "no heartbeat for 0.03 s")


async def test_a_repeated_write_is_read_back_first(threads: ThreadPoolExecutor) -> None:
    paid: list[int] = []

    async def pay(amount: int) -> str:
        paid.append(amount)
        return "paid now"

    async def find(amount: int) -> str | None:
        return "paid before" if amount == 5 else None

    options = {"effect": "write", "read_back": find}
    assert (await outcome_of(threads, pay, 5, number=1, **options)).result == b'"paid now"'
    assert (await outcome_of(threads, pay, 5, number=2, **options)).result == b'"paid before"'
    assert (await outcome_of(threads, pay, 6, number=2, **options)).result == b'"paid now"'
    assert paid == [5, 6]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "It: done"),
        (3, "It: 3"),
        ("secret", "It: 6 characters"),
        (["a"], "It: 1 item"),
        ({"a": 1, "b": 2}, "It: 2 items"),
        (type("R", (), {"summary": "two found"})(), "two found"),
        (object(), "It: done"),
    ],
)
def test_a_result_is_told_in_a_few_words_and_texts_are_not_shown(value: Any, said: str) -> None:
    assert summary_of("It", value) == said


def test_an_error_that_is_cut_says_how_long_it_was_and_is_cut_between_words() -> None:
    assert cut_short("short") == "short"
    assert cut_short("x" * 2_000) == "x" * 2_000
    whole = "word " * 395 + "secret-" * 20
    cut = cut_short(whole)
    assert len(cut) <= 2_000
    assert cut.endswith(f"word … ({len(whole)} characters)"), "half of a word is not there"
    key = "k" * 40
    for before in range(240, 330):
        shown = cut_short(f'{"{"}"a":"{"b " * (before // 2)}","key":"{key}"{"}"}' + "c" * 300, 300)
        assert len(shown) <= 300
        assert key in shown or "kkk" not in shown, "half of a key is no key to the scrubber"
    assert cut_short("x" * 9_000) == " … (9000 characters)"
