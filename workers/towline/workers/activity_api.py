"""`activity`: the decorator, and what the code of a running activity may ask for under the same name.

    @activity(effect="read")
    async def fetch(url: str) -> Page:
        activity.heartbeat({"at": url})

Promises that the calls work in `async def` activities and in plain `def` ones, which run in a thread. Outside
of an activity they raise `RuntimeError`. Leaves running attempts to `activities`.
"""

import contextvars
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, ParamSpec, Protocol, TypeVar, overload

from towline.protocol.deltas import DeltaKind
from towline.protocol.values import Effect
from towline.workers.registry import DEFAULT_START_TO_CLOSE, Activity, Retry, registry
from towline.workers.values import Artifact

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class RunningAttempt(Protocol):
    """One attempt as its own code sees it."""

    @property
    def attempt(self) -> int: ...
    @property
    def idempotency_key(self) -> str: ...
    @property
    def fencing_token(self) -> str: ...
    @property
    def cancelled(self) -> bool: ...
    @property
    def last_heartbeat(self) -> Any: ...
    def heartbeat(self, details: Any = None) -> None: ...
    def usage(self, *, usd_micros: int = 0, tokens: int = 0) -> None: ...
    def artifact(self, name: str, data: bytes | str, media_type: str) -> Artifact: ...
    def fetch_upload(self, ref: str, path: Path) -> int: ...
    def delta(self, text: str, message: str | None = None, kind: DeltaKind = "text") -> None: ...


current_attempt: contextvars.ContextVar[RunningAttempt] = contextvars.ContextVar("towline_attempt")


class _Decorator(Protocol):
    @overload
    def __call__(self, fn: Callable[P, Awaitable[R]], /) -> Activity[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Activity[P, R]: ...


class ActivityApi:
    """See the module."""

    @overload
    def __call__(self, fn: Callable[P, Awaitable[R]], /) -> Activity[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Activity[P, R]: ...
    @overload
    def __call__(
        self,
        *,
        name: str | None = None,
        retry: Retry | None = None,
        start_to_close: timedelta | None = DEFAULT_START_TO_CLOSE,
        heartbeat: timedelta | None = None,
        effect: Effect = "write",
        idempotent: bool = False,
        read_back: Callable[..., Any] | None = None,
    ) -> _Decorator: ...
    def __call__(self, fn: Callable[..., Any] | None = None, **options: Any) -> Any:
        """Make a function an activity. Raises `RegistrationError` for one that could not work.

        `retry`: see `Retry`. `start_to_close`: how long one attempt may take, None for ever. `heartbeat`: the
        longest silence between two `activity.heartbeat` calls. `effect`: what it does to the world: `none`,
        `read`, or `write` (the default); a write needs `idempotent=True`, meaning that it hands
        `activity.idempotency_key` on, or `read_back`, which is called with the same arguments before a repeated
        attempt and returns the result if the effect is there already, else None. `name`: by default the
        function's.
        """
        return registry.activity(fn, **options)

    @property
    def attempt(self) -> int:
        """Which try of this step this is, from 1."""
        return _current().attempt

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt of this step and for no other step: hand it to what you call."""
        return _current().idempotency_key

    @property
    def fencing_token(self) -> str:
        """Grows with every new holder of the run; a store that compares it refuses a stale worker."""
        return _current().fencing_token

    @property
    def cancelled(self) -> bool:
        """Whether the step should stop. Code in a thread looks here; async code gets CancelledError."""
        return _current().cancelled

    @property
    def last_heartbeat(self) -> Any:
        """The details of the newest heartbeat of an earlier attempt in this worker, or None."""
        return _current().last_heartbeat

    def heartbeat(self, details: Any = None) -> None:
        """Say that the attempt is alive. In a thread, raises `CancelledError` once the step should stop."""
        _current().heartbeat(details)

    def usage(self, *, usd_micros: int = 0, tokens: int = 0) -> None:
        """Add to what this attempt has spent."""
        _current().usage(usd_micros=usd_micros, tokens=tokens)

    def artifact(self, name: str, data: bytes | str, media_type: str) -> Artifact:
        """Keep `data` as an artifact. It is announced together with this activity's result, or not at all."""
        return _current().artifact(name, data, media_type)

    def fetch_upload(self, ref: str, path: Path) -> int:
        """Write the bytes of an upload that the run was given to a new file at `path`; how many bytes.

        It waits, so `async def` code calls it through `asyncio.to_thread`. Raises `LookupError` when the run was
        given no such upload.
        """
        return _current().fetch_upload(ref, path)

    def delta(self, text: str, message: str | None = None, kind: DeltaKind = "text") -> None:
        """Show more of a text while it is being made. Returns at once; what is shown may lag and is not recorded.

        The message is recorded with its whole text when the activity returns, and with what there is of it, as
        `partial`, when the step fails. `message`: its name, unique in the run; without one all texts of a kind are
        one message. `kind`: `text`, `reasoning` (for operators only) or `tool_arguments` (never recorded).
        """
        _current().delta(text, message, kind)


def _current() -> RunningAttempt:
    try:
        return current_attempt.get()
    except LookupError:
        raise RuntimeError("this works only inside a running activity") from None


activity: Final = ActivityApi()
"""What users import: `from towline.workers import activity`."""
