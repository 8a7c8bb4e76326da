"""The event loop that workflow code runs on: deterministic, without sockets, threads or a clock.

Promises that the same code, given the same feeds, runs the same callbacks in the same order, in any process:
callbacks run first in, first out; `time()` stands still until the machine sets it; tasks and futures hash by
their order of creation, so that even a set of them iterates the same way. `call_later` and `call_at`, and with
them `asyncio.sleep`, `timeout` and `wait_for`, arm durable timers; a timer fires when its `timer.fired` is fed
and never by itself. What would touch the world raises `ForbiddenCall` at once and says what to use.

Not covered, because nothing passes through the loop: `time.sleep`, blocking I/O, iteration over sets of texts
(hash seeds differ between processes), `asyncio.as_completed` over bare coroutines (hand it tasks).
"""

import asyncio
import contextvars
import hashlib
import math
import sys
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final, NoReturn, TypeVarTuple

from towline.workers.values import ForbiddenCall, MachineDropped

MAX_CALLBACKS: Final = 1_000_000
"""Callbacks in one feed after which the workflow counts as spinning."""

_Ts = TypeVarTuple("_Ts")
_GOLDEN: Final = 0x9E3779B97F4A7C15
_HASH_MASK: Final = (1 << 61) - 1


class Spinning(RuntimeError):
    """The workflow never comes to rest: it loops without waiting for anything durable."""


class Scope:
    """Where in the tree of tasks a step is named: counters of its own, so branches never share them."""

    __slots__ = ("_children", "_counts", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self._counts: dict[str, int] = {}
        self._children = 0

    def next_step(self, name: str) -> str:
        """`<generation>:<scope path>:<name>:<occurrence>`, safe in a URL."""
        occurrence = self._counts[name] = self._counts.get(name, 0) + 1
        return f"{self.path}:{name}:{occurrence}"

    def child(self) -> "Scope":
        """The scope of the next task made here."""
        self._children += 1
        return Scope(f"{self.path}.{self._children}")


current_scope: contextvars.ContextVar[Scope] = contextvars.ContextVar("towline_scope")
"""The scope of the running workflow code; unset outside of it."""


class WorkflowFuture(asyncio.Future[Any]):
    """A future whose hash is the same in every process."""

    def __init__(self, *, order: int, loop: asyncio.AbstractEventLoop) -> None:
        self._order = order
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._order


class WorkflowTask(asyncio.Task[Any]):
    """A task whose hash is the same in every process."""

    def __init__(self, coro: Any, *, order: int, **rest: Any) -> None:
        self._order = order
        super().__init__(coro, **rest)

    def __hash__(self) -> int:
        return self._order


class DurableTimer(asyncio.TimerHandle):
    """What `call_later` returned: armed in the store under `step`, due at `due_ms` of the store's clock."""

    def __init__(self, step: str, due_ms: int, callback: Any, args: Any, loop: "WorkflowLoop", context: Any) -> None:
        super().__init__(due_ms / 1000, callback, args, loop, context)
        self.step = step
        self.due_ms = due_ms
        self._scheduled = True  # asks TimerHandle.cancel to tell the loop


class WorkflowLoop(asyncio.AbstractEventLoop):
    """See the module. The machine calls `run_to_rest` after each feed and `drop` at the end.

    `on_arm` and `on_disarm` tell the machine of timers that code began and gave up.
    """

    def __init__(
        self,
        run: str,
        root: Scope,
        *,
        on_arm: Callable[[DurableTimer], None],
        on_disarm: Callable[[DurableTimer], None],
    ) -> None:
        self.now_ms = 0
        self.complaints: list[str] = []
        self._root = root
        self._on_arm = on_arm
        self._on_disarm = on_disarm
        self._ready: deque[asyncio.Handle] = deque()
        self._salt = int.from_bytes(hashlib.sha256(run.encode()).digest()[:8], "big")
        self._created = 0
        self._tasks: list[WorkflowTask] = []
        self._running = False
        self._dropped = False

    # --- what the machine calls

    def run_to_rest(self) -> None:
        """Run callbacks until none is ready. Raises `Spinning` after `MAX_CALLBACKS`."""
        outer, hooks = events._get_running_loop(), sys.get_asyncgen_hooks()
        events._set_running_loop(self)
        # An abandoned async generator must not call the outer loop's finaliser from in here.
        sys.set_asyncgen_hooks(firstiter=None, finalizer=None)
        self._running = True
        try:
            for _ in range(MAX_CALLBACKS):
                if not self._ready:
                    return
                handle = self._ready.popleft()
                if not handle.cancelled():
                    try:  # noqa: SIM105 - contextlib.suppress takes as long as what it would guard
                        handle._run()
                    except SystemExit:  # its task holds it; the worker goes on
                        pass
            raise Spinning(
                f"the workflow ran {MAX_CALLBACKS:,} callbacks without coming to rest; "
                "wait for a signal, a timer or an activity instead of polling"
            )
        finally:
            self._running = False
            sys.set_asyncgen_hooks(*hooks)
            events._set_running_loop(outer)

    def fire(self, timer: DurableTimer) -> None:
        """Make a due timer's callback ready."""
        timer._scheduled = False
        if not timer.cancelled():
            self._ready.append(timer)

    def drop(self) -> None:
        """Let all code go without running more of it than its `finally` blocks, whose calls all fail."""
        if self._dropped:
            return
        self._dropped = True
        self._ready.clear()
        for task in reversed(self._tasks):
            if task.done():
                continue
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            coro = task.get_coro()
            for _ in range(10):  # code that awaits in `finally` ignores the first GeneratorExit
                try:
                    if coro is not None:
                        coro.close()
                    break
                except BaseException:  # nothing that a dropped machine raises matters
                    continue
        self._tasks.clear()

    # --- what asyncio calls

    def time(self) -> float:
        return self.now_ms / 1000

    def call_soon(
        self, callback: Callable[[*_Ts], object], *args: *_Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        self._refuse_dropped()
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[[*_Ts], object], *args: *_Ts, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self._arm(self.now_ms + _whole_ms(delay), callback, args, context)

    def call_at(
        self, when: float, callback: Callable[[*_Ts], object], *args: *_Ts, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self._arm(_whole_ms(when), callback, args, context)

    def create_future(self) -> asyncio.Future[Any]:
        return WorkflowFuture(order=self._next_order(), loop=self)

    def create_task(
        self,
        coro: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
        **_: Any,
    ) -> asyncio.Task[Any]:
        self._refuse_dropped()
        creator = current_scope.get(self._root)
        scope = creator if not self._created or _is_wait_for_of_3_11() else creator.child()
        own = (context or contextvars.copy_context()).copy()
        own.run(current_scope.set, scope)
        order = self._next_order()
        task = WorkflowTask(coro, order=order, loop=self, name=name or f"task-{scope.path}", context=own)
        self._tasks.append(task)
        if len(self._tasks) > 64:
            self._tasks = [known for known in self._tasks if not known.done()]
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.complaints.append(f"{context.get('message')}: {context.get('exception')!r}")

    default_exception_handler = call_exception_handler

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._dropped

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        if isinstance(handle, DurableTimer):
            self._on_disarm(handle)

    # --- inside

    def _arm(self, due_ms: int, callback: Any, args: Any, context: Any) -> asyncio.TimerHandle:
        self._refuse_dropped()
        if due_ms <= self.now_ms:
            timer = asyncio.TimerHandle(due_ms / 1000, callback, args, self, context)
            self._ready.append(timer)
            return timer
        step = current_scope.get(self._root).next_step("timer")
        durable = DurableTimer(step, due_ms, callback, args, self, context)
        self._on_arm(durable)
        return durable

    def _next_order(self) -> int:
        self._created += 1
        # Spread, since tasks of all runs share one set inside asyncio.
        return (self._salt + self._created * _GOLDEN) & _HASH_MASK

    def _refuse_dropped(self) -> None:
        if self._dropped:
            raise MachineDropped


def _whole_ms(seconds: float) -> int:
    """Seconds as whole milliseconds, rounded up: a timer is never early."""
    if not math.isfinite(seconds) or seconds > 1e11:
        raise ValueError(f"a timer cannot wait {seconds} seconds; wait for a signal or an approval instead")
    return math.ceil(round(seconds * 1000, 3))


def _is_wait_for_of_3_11() -> bool:
    """Whether `create_task` was called by `asyncio.wait_for` of Python 3.11.

    From 3.12 on `wait_for` awaits in the task that called it. The same steps must have the same names on both,
    so the task that 3.11 makes in between shares the scope of its caller, which only waits meanwhile.
    """
    if sys.version_info >= (3, 12):
        return False
    frame = sys._getframe(2)
    for _ in range(3):
        if frame.f_code.co_filename != asyncio.tasks.__file__:
            return False
        if frame.f_code.co_name == "wait_for":
            return True
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False


def _forbid(name: str, instead: str) -> Callable[..., NoReturn]:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise ForbiddenCall(f"workflow code may not call {name}: {instead}")

    return refuse


_INSTEAD: Final = {
    "run_in_executor": "threads are not replayed; make it a plain `def` activity (it runs in a thread)",
    "call_soon_threadsafe": "nothing outside wakes a workflow but a signal; use ctx.wait_signal(…)",
    **dict.fromkeys(
        ("run_forever", "run_until_complete", "stop", "close"), "its loop is the machine's; await what you need"
    ),
}
for _name in vars(asyncio.AbstractEventLoop):
    # Whatever the loop does not offer touches the world, or the loop's own working.
    if not _name.startswith("_") and _name not in vars(WorkflowLoop):
        _instead = _INSTEAD.get(_name, "do it in an activity and await ctx.run(…)")
        setattr(WorkflowLoop, _name, _forbid(f"loop.{_name}", _instead))
