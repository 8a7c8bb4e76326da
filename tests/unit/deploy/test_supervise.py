"""Restarts and their pace, one exit code that is not repeated, and children that outlive nobody."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator

import psutil
import pytest

from tests.support.waiting import wait_until, wait_until_sync
from towline.deploy.supervise import FD_VARIABLE, Pace, Program, Supervisor, how_it_ended


def python(name: str, code: str, **environment: str) -> Program:
    return Program(name, (sys.executable, "-c", code), environment)


SLEEPER = "import time; print('up', flush=True); time.sleep(600)"


def test_quick_deaths_wait_longer_and_longer() -> None:
    pace = Pace()
    waits = [pace.next_s(0.1) for _ in range(10)]
    assert waits[:4] == [0.2, 0.4, 0.8, 1.6]
    assert waits[-1] == Pace.LONGEST_S
    assert max(pace.next_s(0.0) for _ in range(2_000)) == Pace.LONGEST_S


def test_a_long_life_earns_a_fresh_start() -> None:
    pace = Pace()
    for _ in range(5):
        pace.next_s(1.0)
    assert pace.next_s(Pace.STEADY_S) == Pace.FIRST_S
    assert pace.next_s(1.0) == 2 * Pace.FIRST_S


def test_an_exit_code_in_words() -> None:
    assert how_it_ended(1) == "ended with exit code 1"
    assert how_it_ended(-9) == "was killed (SIGKILL)"
    assert how_it_ended(-200) == "was killed (signal 200)"


@pytest.fixture
async def lines() -> list[str]:
    return []


@pytest.fixture
async def supervisor(lines: list[str]) -> AsyncIterator[Supervisor]:
    supervisor = Supervisor(lines.append)
    yield supervisor
    pids = list(supervisor.pids().values())
    await supervisor.stop()
    assert not any(psutil.pid_exists(pid) for pid in pids)


async def test_who_dies_is_started_again_and_it_is_said_in_one_line(supervisor: Supervisor, lines: list[str]) -> None:
    supervisor.start(python("worker-1", SLEEPER))
    await wait_until(lambda: "worker-1 | up" in lines, "the first life")
    first = supervisor.pids()["worker-1"]
    os.kill(first, signal.SIGKILL)
    await wait_until(lambda: lines.count("worker-1 | up") == 2, "the second life")
    assert supervisor.pids()["worker-1"] != first
    assert "worker-1 was killed (SIGKILL); it is started again in 0.2 s" in lines


async def test_who_refuses_to_start_is_not_started_again(supervisor: Supervisor, lines: list[str]) -> None:
    supervisor.start(python("gateway", "import sys; print('no port', file=sys.stderr); sys.exit(2)"))
    refused = await asyncio.wait_for(asyncio.shield(supervisor.refused), 15)
    assert "gateway cannot start" in str(refused)
    assert lines == ["gateway  | no port"]
    assert supervisor.pids() == {}


async def test_a_refusal_in_a_stack_that_works_is_one_more_death(supervisor: Supervisor, lines: list[str]) -> None:
    supervisor.settle()
    supervisor.start(python("worker-1", "import sys; sys.exit(2)"))
    await wait_until(lambda: sum("ended with exit code 2" in line for line in lines) >= 2, "a second start")
    assert not supervisor.refused.done()


async def test_stop_kills_who_ignores_sigterm(lines: list[str]) -> None:
    supervisor = Supervisor(lines.append)
    supervisor.start(python("deaf", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);" + SLEEPER))
    await wait_until(lambda: "deaf     | up" in lines, "the start")
    pid = supervisor.pids()["deaf"]
    await supervisor.stop(timeout_s=0.2)
    assert not psutil.pid_exists(pid)
    assert any("deaf did not end within 0.2 s" in line for line in lines)


async def test_stop_during_the_wait_between_two_starts_starts_nobody(lines: list[str]) -> None:
    supervisor = Supervisor(lines.append)
    supervisor.start(python("brief", "import sys; sys.exit(1)"))
    await wait_until(lambda: any("started again in 0.8 s" in line for line in lines), "a longer wait")
    await supervisor.stop()
    assert supervisor.pids() == {}


async def test_what_a_killed_program_left_running_ends_too(supervisor: Supervisor, lines: list[str]) -> None:
    start_tool = "import subprocess as s, time; print(s.Popen(['sleep', '600']).pid, flush=True); time.sleep(600)"
    supervisor.start(python("worker-1", start_tool))
    await wait_until(lambda: len(lines) == 1, "the tool's pid")
    left = psutil.Process(int(lines[0].rpartition(" ")[2]))
    os.kill(supervisor.pids()["worker-1"], signal.SIGKILL)
    await wait_until(lambda: not _lives(left), "the end of the tool")


async def test_long_lines_and_bytes_that_are_no_text_are_shown(supervisor: Supervisor, lines: list[str]) -> None:
    supervisor.start(
        python("loud", "import os, time; os.write(1, b'\\xff' + b'a' * 200_000 + b'\\nend'); time.sleep(0.1)")
    )
    await wait_until(lambda: "loud     | end" in lines, "the last words")
    assert sum(line.count("a") for line in lines if "|" in line) >= 200_000


SUPERVISOR = """
import asyncio, sys
from towline.deploy.supervise import Program, Supervisor
CHILD = "from towline.deploy.supervise import end_with_supervisor; end_with_supervisor(0.2);"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
UP = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
async def main():
    supervisor = Supervisor(lambda line: print(line.rpartition(' ')[2], flush=True))
    supervisor.start(Program("polite", (sys.executable, "-c", CHILD + UP)))
    supervisor.start(Program("deaf", (sys.executable, "-c", DEAF + CHILD + UP)))
    await asyncio.sleep(600)
asyncio.run(main())
"""


@pytest.mark.processes
def test_children_of_a_killed_supervisor_end_by_themselves() -> None:
    with subprocess.Popen([sys.executable, "-c", SUPERVISOR], stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        children = [psutil.Process(int(supervisor.stdout.readline())) for _ in range(2)]
        assert all(_lives(child) for child in children)
        supervisor.kill()
        wait_until_sync(lambda: not any(_lives(child) for child in children), "the end of both children")


def test_a_process_without_a_supervisor_goes_on() -> None:
    environment = {name: value for name, value in os.environ.items() if name != FD_VARIABLE}
    code = (
        "from towline.deploy.supervise import end_with_supervisor; end_with_supervisor(0.0);"
        "import threading; print(threading.active_count())"
    )
    for named in ({}, {FD_VARIABLE: "nonsense"}, {FD_VARIABLE: "999"}):
        answer = subprocess.run(
            [sys.executable, "-c", code], env={**environment, **named}, capture_output=True, text=True, check=True
        )
        assert answer.stdout.strip() == "1"


def _lives(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False
