"""The README keeps its word: its agent and its client run, and print what it says they print.

The files are taken from the README's own blocks. The worker that holds the run is killed where the printed output
says so. The commands it shows exist, with the options it gives them.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.dev import Dev, towline
from towline.deploy.local_http import get_json

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def the_block(language: str, holding: str) -> str:
    (found,) = [block for block in blocks(language) if holding in block]
    return found


def holder_of(dev: Dev) -> int:
    """The process of the worker that holds the one run; a worker's id ends with its process and a random part."""
    (run,) = get_json(dev.url, "/v1/runs", token=dev.token).body["items"]
    worker = get_json(dev.url, f"/v1/runs/{run['id']}", token=dev.token).body["worker"]
    return int(worker["id"].rsplit("-", 2)[1])


@pytest.mark.processes
def test_the_first_screen(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(the_block("python", "@workflow"))
    (tmp_path / "client.py").write_text(the_block("python", "asyncio.run"))
    printed = the_block("text", "run.created").splitlines()
    kill_after = next(number for number, line in enumerate(printed) if "kill -9" in line)
    expected = [line for line in printed if "kill -9" not in line]
    data = tmp_path / ".towline"
    with Dev(data, "--workflows", tmp_path / "agent.py") as dev:
        client = subprocess.Popen(
            [sys.executable, "-u", "client.py"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        lines: list[str] = []
        assert client.stdout is not None
        for line in client.stdout:
            lines.append(line.rstrip())
            if len(lines) == kill_after:
                os.kill(holder_of(dev), signal.SIGKILL)
        _, complaints = client.communicate(timeout=60)
        assert client.returncode == 0, complaints
    assert lines == expected


def test_the_commands_exist() -> None:
    shown = [shlex.split(line, comments=True) for block in blocks("sh") for line in block.splitlines()]
    ours = [words for words in shown if words and words[0] == "towline"]
    assert len(ours) >= 4
    for words in ours:
        plain = [word for word in words[1:3] if re.fullmatch(r"[a-z]+", word)]
        depth = 2 if plain[:1] == ["run"] else 1
        answer = towline(*plain[:depth], "--help")
        assert answer.returncode == 0, answer.stderr
        for option in (word for word in words if word.startswith("--")):
            assert option in answer.stdout


@pytest.mark.parametrize("script", ["deploy/demo", "tests/run"])
def test_the_two_scripts_exist(script: str) -> None:
    assert any(script in block for block in blocks("sh"))
    assert os.access(ROOT / script, os.X_OK)


def test_links_lead_somewhere() -> None:
    local = re.findall(r"\]\((?!https?:)([^)#]+)\)", README)
    assert local
    assert [link for link in local if not (ROOT / link).exists()] == []
