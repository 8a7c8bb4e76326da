"""`towline dev` as a person starts it: a real process, with real children, on a free port.

Promises a stack that is ready when the block begins, and that nothing of it runs when the block ends, or the
test fails and what was left is ended by process id.
"""

import contextlib
import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Self

import psutil

from towline.deploy.local_http import LocalAnswer, get_json

TOWLINE = (sys.executable, "-m", "towline.deploy.cli")


def towline(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs one command to its end."""
    return subprocess.run([*TOWLINE, *arguments], capture_output=True, text=True, timeout=120, check=False, **options)


class Dev:
    """`with Dev(data) as dev:`; `url`, `token` as it printed them, `lines` what it said on stderr."""

    def __init__(self, data: Path, *arguments: str | Path, port: int = 0) -> None:
        self.data = data
        self._arguments = ("dev", "--json", "--data", data, "--port", str(port), *arguments)
        self.lines: list[str] = []
        self.url = self.token = ""

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            [*TOWLINE, *self._arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"it ended with {self.process.wait(timeout=60)}: {self.said()}"
        ready = json.loads(line)
        assert sorted(ready) == ["data", "token", "url"]
        self.url, self.token = ready["url"], ready["token"]
        self.family = psutil.Process(self.process.pid).children(recursive=True)
        return self

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))

    def said(self) -> str:
        """Everything on stderr so far."""
        return "\n".join(self.lines)

    def child(self, name: str) -> psutil.Process:
        """The running child of this kind: `gateway`, `worker` (the first), `valkey-server` …"""
        for process in psutil.Process(self.process.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):
                command = process.cmdline()
                self.family.append(process)
                if name in command or any(part.rpartition("/")[2].startswith(name) for part in command[:1]):
                    return process
        raise AssertionError(f"no {name} runs")

    def get(self, path: str) -> LocalAnswer:
        """One GET, with the token."""
        return get_json(self.url, path, token=self.token)

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        """Sends the signal and waits for the end; the exit code."""
        self.process.send_signal(number)
        return self.process.wait(timeout=60)

    def left(self) -> list[psutil.Process]:
        """What still runs of all that was ever seen of it."""
        return [process for process in set(self.family) if lives(process)]

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.stop()
        self._reader.join(timeout=10)
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()
        left = self.left()
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        assert not left, f"it left {left}"


def lives(process: psutil.Process) -> bool:
    """Whether it still runs; a zombie that its new parent has not yet collected does not."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False
