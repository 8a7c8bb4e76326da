"""The deterministic loop: what it orders, what it arms, what it forbids."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from towline.workers.loop import DurableTimer, Scope, Spinning, WorkflowLoop, current_scope
from towline.workers.values import ForbiddenCall, MachineDropped


class Loop:
    """A loop with the timers it armed."""

    def __init__(self, run: str = "r") -> None:
        self.armed: list[DurableTimer] = []
        self.disarmed: list[str] = []
        self.loop = WorkflowLoop(  # type: ignore[abstract]
            run, Scope("1:0"), on_arm=self.armed.append, on_disarm=lambda timer: self.disarmed.append(timer.step)
        )

    def run(self, make: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Run to rest; the result if the task is done by then."""
        task = self.loop.create_task(make())
        self.loop.run_to_rest()
        return task.result() if task.done() else task

    def fire(self, index: int) -> None:
        self.loop.now_ms = self.armed[index].due_ms
        self.loop.fire(self.armed[index])
        self.loop.run_to_rest()


def test_sleeps_become_durable_timers_that_fire_only_when_told() -> None:
    held = Loop()
    held.loop.now_ms = 1_000
    seen: list[float] = []

    async def sleeper() -> None:
        await asyncio.sleep(0)
        await asyncio.sleep(1.5)
        seen.append(asyncio.get_running_loop().time())

    held.run(sleeper)
    assert [(timer.step, timer.due_ms) for timer in held.armed] == [("1:0:timer:1", 2_500)]
    held.loop.now_ms = 9_000
    held.loop.run_to_rest()
    assert seen == []
    held.fire(0)
    assert seen == [2.5]


def test_the_structures_of_asyncio_work() -> None:
    async def main() -> Any:
        queue: asyncio.Queue[int] = asyncio.Queue()
        event = asyncio.Event()

        async def child(n: int) -> int:
            if n == 2:
                event.set()
            await event.wait()
            await queue.put(n)
            return n

        got = await asyncio.gather(*(child(n) for n in range(3)))
        async with asyncio.TaskGroup() as group:
            extra = group.create_task(child(7))
        done, pending = await asyncio.wait({asyncio.ensure_future(child(n)) for n in (8, 9)})
        within = await asyncio.wait_for(child(10), 60)
        return got, extra.result(), sorted(t.result() for t in done), len(pending), within, queue.qsize()

    held = Loop()
    assert held.run(main) == ([0, 1, 2], 7, [8, 9], 0, 10, 7)
    assert held.disarmed == [timer.step for timer in held.armed]


def test_timeouts_interrupt_what_they_guard() -> None:
    async def main() -> str:
        try:
            async with asyncio.timeout(5):
                await asyncio.Event().wait()
        except TimeoutError:
            return "timeout"
        return "no"

    held = Loop()
    task = held.run(main)
    held.fire(0)
    assert task.result() == "timeout"


def test_each_task_counts_its_steps_for_itself() -> None:
    steps: list[str] = []

    async def branch(depth: int) -> None:
        steps.append(current_scope.get().next_step("x"))
        if depth:
            await asyncio.gather(branch(depth - 1), branch(depth - 1))
        steps.append(current_scope.get().next_step("x"))

    Loop().run(lambda: branch(1))
    assert sorted(steps) == ["1:0.1:x:1", "1:0.1:x:2", "1:0.2:x:1", "1:0.2:x:2", "1:0:x:1", "1:0:x:2"]


def test_wait_for_keeps_the_scope_of_its_caller_on_every_python() -> None:
    async def inner() -> str:
        return current_scope.get().next_step("x")

    async def main() -> list[str]:
        return [await asyncio.wait_for(inner(), 1), current_scope.get().next_step("x")]

    assert Loop().run(main) == ["1:0:x:1", "1:0:x:2"]


def test_sets_of_tasks_iterate_the_same_way_in_every_process() -> None:
    async def main() -> list[str]:
        async def nothing() -> None: ...

        tasks = {asyncio.create_task(nothing(), name=f"t{n}") for n in range(50)}
        done, _ = await asyncio.wait(tasks)
        return [task.get_name() for task in done]

    first = Loop("one run").run(main)
    assert first == Loop("one run").run(main)
    assert first != Loop("another run").run(main)


async def _thread() -> None:
    await asyncio.to_thread(print)


async def _socket() -> None:
    await asyncio.open_connection("localhost", 1)


async def _process() -> None:
    await asyncio.create_subprocess_exec("true")


async def _from_outside() -> None:
    asyncio.get_running_loop().call_soon_threadsafe(print)


async def _nested() -> None:
    asyncio.get_running_loop().run_forever()


@pytest.mark.parametrize("forbidden", [_thread, _socket, _process, _from_outside, _nested])
def test_what_touches_the_world_raises_at_once_and_says_what_to_use(
    forbidden: Callable[[], Coroutine[Any, Any, None]],
) -> None:
    with pytest.raises(ForbiddenCall, match=r"workflow code may not call loop\.\w+: .+"):
        Loop().run(forbidden)


def test_a_spinning_workflow_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("towline.workers.loop.MAX_CALLBACKS", 1_000)

    async def spin() -> None:
        while True:  # noqa: ASYNC110 - what it is about
            await asyncio.sleep(0)

    held = Loop()
    with pytest.raises(Spinning, match="1,000 callbacks"):
        held.run(spin)
    held.loop.drop()


def test_a_timer_cannot_wait_for_ever() -> None:
    async def main() -> None:
        await asyncio.sleep(float("inf"))

    with pytest.raises(ValueError, match="cannot wait inf seconds"):
        Loop().run(main)


def test_dropping_lets_stubborn_code_go() -> None:
    finished: list[str] = []

    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            with contextlib.suppress(Exception):
                await asyncio.sleep(5)
            finished.append("after")

    held = Loop()

    async def both() -> None:
        await asyncio.gather(stubborn(), stubborn())

    held.run(both)
    held.loop.drop()
    assert held.armed == []
    assert held.loop.is_closed()
    with pytest.raises(MachineDropped):
        held.loop.call_soon(print)


async def test_it_runs_inside_another_loop_and_gives_it_back() -> None:
    outer = asyncio.get_running_loop()

    async def main() -> bool:
        return asyncio.get_running_loop() is not outer

    assert Loop().run(main) is True
    assert asyncio.get_running_loop() is outer
