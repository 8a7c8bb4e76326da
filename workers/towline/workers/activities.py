"""Running one attempt of an activity, and what its code may ask for meanwhile.

Promises exactly one outcome for each attempt, whatever its code does: a result, or an error whose `retryable`
follows the activity's policy. `async def` runs on the worker's loop, plain `def` in a thread. Cancelling the
task of `run_attempt` cancels async code at its await; code in a thread is told by `activity.cancelled` and at
its next heartbeat, and is waited for, since a thread cannot be stopped. Leaves what an outcome leads to to
`holding`.
"""

import asyncio
import contextlib
import contextvars
import functools
import hashlib
import inspect
import logging
import time
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, Final

import msgspec

from towline.protocol import event_data as d
from towline.protocol.deltas import DeltaKind
from towline.protocol.ids import derived_run_id
from towline.protocol.limits import ARTIFACT_BYTES, PAYLOAD_BYTES
from towline.protocol.values import ErrorInfo, Usage
from towline.workers.activity_api import current_attempt
from towline.workers.commits import Attempt, AttemptFailed, AttemptFinished, Outcome
from towline.workers.decisions import StoreArtifact
from towline.workers.entries import check_data
from towline.workers.machine import SUMMARY_CHARS, cut_short
from towline.workers.messages import Messages
from towline.workers.registry import encode_value
from towline.workers.uploads import FetchUpload
from towline.workers.values import Artifact

_log: Final = logging.getLogger("towline.worker")


class AttemptContext:
    """One running attempt as its code sees it through `activity`."""

    def __init__(
        self,
        attempt: Attempt,
        *,
        run: str,
        fencing_token: str,
        last_heartbeat: Any = None,
        fetch_upload: FetchUpload | None = None,
        messages: Messages | None = None,
    ) -> None:
        self.attempt = attempt.number
        self.idempotency_key = f"{run}:{attempt.step}"
        self.fencing_token = fencing_token
        self.last_heartbeat = last_heartbeat
        self.cancelled = False
        self.spent = Usage()
        self.artifacts: list[StoreArtifact] = []
        self.heartbeat_s = time.monotonic()
        self.messages = messages or Messages(run)
        self.messages.begin(attempt.step, attempt.number)
        self._step = attempt.step
        self._run = run
        self._fetch_upload = fetch_upload

    def heartbeat(self, details: Any = None) -> None:
        self.heartbeat_s = time.monotonic()
        self.last_heartbeat = details
        if self.cancelled:
            raise asyncio.CancelledError("the step was given up")

    def usage(self, *, usd_micros: int = 0, tokens: int = 0) -> None:
        self.spent = Usage(self.spent.usd_micros + usd_micros, self.spent.tokens + tokens)

    def delta(self, text: str, message: str | None = None, kind: DeltaKind = "text") -> None:
        self.messages.append(self._step, self.attempt, text, message, kind)

    def fetch_upload(self, ref: str, path: Path) -> int:
        if self._fetch_upload is None:
            raise LookupError("the run was given no uploads")
        return self._fetch_upload(ref, path)

    def artifact(self, name: str, data: bytes | str, media_type: str) -> Artifact:
        content = data.encode() if isinstance(data, str) else bytes(data)
        if len(content) > ARTIFACT_BYTES:
            raise ValueError(f"artifact {name!r} has {len(content)} bytes, the limit is {ARTIFACT_BYTES}")
        place = f"{self._run}\n{self._step}\n{self.attempt}\n{len(self.artifacts) + 1}"
        made = d.ArtifactCreated(
            artifact="art_" + derived_run_id(hashlib.sha256(place.encode()).digest()).removeprefix("run_"),
            name=name,
            media_type=media_type,
            size=len(content),
            sha256=hashlib.sha256(content).hexdigest(),
            step=self._step,
        )
        check_data(made)
        self.artifacts.append(StoreArtifact(step=self._step, data=made, content=content))
        return Artifact(made.artifact, made.sha256, made.size)


async def run_attempt(attempt: Attempt, context: AttemptContext, threads: Executor) -> Outcome:
    """Run one attempt to its outcome. Never raises what the activity's code raised."""
    started_s = time.monotonic()
    activity = attempt.start.activity
    try:
        value = await _call(attempt, context, threads)
        result = encode_value(value, f"the result of {activity.name}")
        if len(result) > PAYLOAD_BYTES:
            raise _TooLarge(
                f"the result of {attempt.step} takes {len(result)} bytes, the limit is {PAYLOAD_BYTES}; "
                "keep it with activity.artifact(…) and return its name"
            )
    except asyncio.CancelledError as error:
        return _failed(attempt, context, "Cancelled" if context.cancelled else "CancelledError", error, retryable=True)
    except (_TooLarge, _BadArguments) as error:
        return _failed(attempt, context, type(error).__name__.lstrip("_"), error, retryable=False)
    except (Exception, SystemExit) as error:
        _log.info("%s attempt %d failed", attempt.step, attempt.number, exc_info=True)
        return _failed(attempt, context, type(error).__name__, error, retryable=activity.retry.heals(error))
    return AttemptFinished(
        step=attempt.step,
        attempt=attempt.number,
        result=result,
        summary=summary_of(activity.title, value),
        duration_ms=round((time.monotonic() - started_s) * 1000),
        usage=_usage(context),
        artifacts=tuple(context.artifacts),
        messages=context.messages.finish(attempt.step),
    )


def summary_of(title: str, value: Any) -> str:
    """A result in a few words. Shows a text only if the result offers one as `summary`."""
    said = getattr(value, "summary", None)
    if isinstance(said, str) and said:
        return cut_short(said, SUMMARY_CHARS)
    match value:
        case None:
            return f"{title}: done"
        case bool() | int() | float():
            return f"{title}: {value}"
        case str() | bytes():
            return f"{title}: {len(value)} {'characters' if isinstance(value, str) else 'bytes'}"
        case list() | tuple() | set() | frozenset() | dict():
            return f"{title}: {len(value)} item{'' if len(value) == 1 else 's'}"
        case _:
            return f"{title}: done"


class _TooLarge(ValueError):
    pass


class _BadArguments(TypeError):
    pass


async def _call(attempt: Attempt, context: AttemptContext, threads: Executor) -> Any:
    activity = attempt.start.activity
    try:
        args = activity.decode_args(attempt.start.args)
    except msgspec.ValidationError as error:
        raise _BadArguments(f"the recorded arguments of {attempt.step} are not what it takes: {error}") from None
    if attempt.number > 1 and activity.read_back is not None:
        found = await _invoke(activity.read_back, args, context, threads, limit_s=_limit_s(attempt), heartbeat_s=None)
        if found is not None:
            return found
    heartbeat_s = None if activity.heartbeat is None else activity.heartbeat.total_seconds()
    return await _invoke(activity.fn, args, context, threads, limit_s=_limit_s(attempt), heartbeat_s=heartbeat_s)


def _limit_s(attempt: Attempt) -> float | None:
    limit = attempt.start.activity.start_to_close
    return None if limit is None else limit.total_seconds()


async def _invoke(
    fn: Any,
    args: tuple[Any, ...],
    context: AttemptContext,
    threads: Executor,
    *,
    limit_s: float | None,
    heartbeat_s: Any,
) -> Any:
    own = contextvars.copy_context()
    own.run(current_attempt.set, context)
    is_async = inspect.iscoroutinefunction(fn)
    if is_async:
        work = asyncio.get_running_loop().create_task(_as_value(fn, args), context=own)
    else:
        work = asyncio.ensure_future(
            asyncio.get_running_loop().run_in_executor(threads, functools.partial(own.run, fn, *args))
        )
    context.heartbeat_s = started_s = time.monotonic()
    try:
        while not work.done():
            now_s = time.monotonic()
            ends = [] if limit_s is None else [started_s + limit_s]
            if heartbeat_s is not None:
                ends.append(context.heartbeat_s + heartbeat_s)
            wait_s = None if not ends else max(0.0, min(ends) - now_s)
            await asyncio.wait([work], timeout=wait_s)
            if work.done():
                break
            now_s = time.monotonic()
            if limit_s is not None and now_s >= started_s + limit_s:
                raise TimeoutError(f"it took longer than {limit_s:g} s")
            if heartbeat_s is not None and now_s >= context.heartbeat_s + heartbeat_s:
                raise TimeoutError(f"no heartbeat for {heartbeat_s:g} s")
        return work.result()
    except (TimeoutError, asyncio.CancelledError) as reason:
        if work.done():
            raise
        context.cancelled = True
        await _stop(work, is_async=is_async, is_timeout=isinstance(reason, TimeoutError))
        raise


async def _as_value(fn: Any, args: tuple[Any, ...]) -> Any:
    try:
        return await fn(*args)
    except SystemExit as error:  # raised in a task it would end the worker
        raise RuntimeError(f"the activity called sys.exit({error.code!r})") from None


async def _stop(work: "asyncio.Future[Any]", *, is_async: bool, is_timeout: bool) -> None:
    """Wait until the code has stopped, so that no other attempt runs beside it.

    After a timeout a thread gets a short while only: it may hang for ever, and the step must go on.
    """
    if is_async:
        work.cancel()
    patience_s = 5.0 if is_timeout else None
    with contextlib.suppress(asyncio.CancelledError):  # a second cancel ends the patience
        await asyncio.wait([work], timeout=patience_s)
    if not work.done():
        _log.warning("an activity goes on in its thread although it was stopped")
        work.add_done_callback(_forget)
    else:
        _forget(work)


def _forget(work: "asyncio.Future[Any]") -> None:
    if not work.cancelled():
        work.exception()


def _failed(
    attempt: Attempt, context: AttemptContext, type_: str, error: BaseException, *, retryable: bool
) -> AttemptFailed:
    context.messages.stop(attempt.step)
    info = ErrorInfo(type_, cut_short(str(error)), retryable)
    return AttemptFailed(step=attempt.step, attempt=attempt.number, error=info, usage=_usage(context))


def _usage(context: AttemptContext) -> Usage | None:
    return context.spent if context.spent != Usage() else None
