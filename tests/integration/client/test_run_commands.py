"""`towline run …` as a person and as a program uses it: what is printed, and what the exit code says."""

import contextlib
import io
import json
import os
import pty
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.dev import TOWLINE, Dev, towline
from tests.support.waiting import wait_until_sync
from towline.deploy import cli

pytestmark = pytest.mark.processes


class Done(NamedTuple):
    """What came of one command."""

    returncode: int
    stdout: str
    stderr: str


def run(dev: Dev, *arguments: str | Path) -> Done:
    """Runs a command in this process, which has long imported everything; without a terminal."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.run(["run", *map(str, arguments), "--data", str(dev.data)])
    return Done(code, out.getvalue(), err.getvalue())


def lines(done: Done) -> list[Any]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def started(dev: Dev, source: Path, *arguments: str) -> str:
    """A review that waits for its approval; its id."""
    made: str = lines(run(dev, "start", "review", "--path", source, "--json", *arguments))[0]["id"]
    wait_until_sync(lambda: waiting(dev, made), "the review to ask for approval", timeout_s=60)
    return made


def waiting(dev: Dev, made: str) -> list[dict[str, Any]]:
    asked: list[dict[str, Any]] = dev.get(f"/v1/runs/{made}").body["waiting_on"]
    return asked


def said(done: Done) -> str:
    """The one line of an error."""
    assert done.stderr.startswith("towline: ")
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
    return done.stderr


def test_an_archive_is_sent_and_reviewed(dev: Dev, source: Path, tmp_path: Path) -> None:
    packed = shutil.make_archive(str(tmp_path / "shop"), "gztar", source)
    made: str = lines(run(dev, "start", "review", "--upload", packed, "--json"))[0]["id"]
    wait_until_sync(lambda: waiting(dev, made), "the review to ask for approval", timeout_s=60)
    assert "the upload" in waiting(dev, made)[0]["title"]
    assert run(dev, "approve", made, "--yes", "--json").returncode == 0
    assert run(dev, "tail", made).returncode == 0

    (tmp_path / "page.html").write_text("<html>")
    done = run(dev, "start", "review", "--upload", tmp_path / "page.html", "--tail")
    assert done.returncode == 1
    assert "neither a zip nor a tar.gz" in done.stdout + done.stderr
    assert run(dev, "start", "review", "--upload", tmp_path / "nothing").returncode == 2
    assert run(dev, "start", "review", "--upload", packed, "--path", source).returncode == 2
    assert run(dev, "start", "review", "--upload", packed, "--input", "[]").returncode == 2


def test_from_start_to_evidence_with_json(dev: Dev, source: Path, tmp_path: Path) -> None:
    made = started(dev, source, "--label", "team=shop", "--headline", "Shop")
    shown = lines(run(dev, "show", made, "--json"))[0]
    assert (shown["labels"], shown["headline"], shown["status"]) == ({"team": "shop"}, "Shop", "waiting")
    assert lines(run(dev, "approve", made, "--yes", "--json"))[0]["status"] == "applied"

    events = lines(run(dev, "tail", made, "--json"))
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert events[-1]["type"] == "run.completed"
    cursors = {event["seq"]: event["cursor"] for event in events if event["cursor"]}
    middle = sorted(cursors)[len(cursors) // 2]
    rest = lines(run(dev, "tail", made, "--after", cursors[middle], "--json"))
    assert [event["seq"] for event in rest] == list(range(middle + 1, len(events) + 1))

    made_list = lines(run(dev, "artifacts", made, "--json"))
    file = tmp_path / "patch"
    assert run(dev, "artifacts", made, "fixes.patch", "-o", file).returncode == 0
    assert file.stat().st_size == next(each["size"] for each in made_list if each["name"] == "fixes.patch")
    assert made in [each["id"] for each in lines(run(dev, "list", "--status", "completed", "--json"))]


def test_a_run_is_paused_and_goes_on_and_the_inbox_knows_what_waits(dev: Dev, source: Path) -> None:
    made = started(dev, source)
    (item,) = [item for item in lines(run(dev, "inbox", "--json")) if item["run"]["id"] == made]
    assert (item["kind"], item["request"]["may_answer"]) == ("approval", True)
    assert made in run(dev, "inbox").stdout
    paused = run(dev, "pause", made, "--reason", "lunch")
    assert (paused.returncode, paused.stdout.startswith("applied: The run")) == (0, True), paused
    again = lines(run(dev, "pause", made, "--json"))[0]
    assert again["status"] == "applied"
    wait_until_sync(lambda: "paused" in run(dev, "show", made).stdout, "the run to rest")
    assert run(dev, "resume", made).stdout == "applied: The run goes on.\n"
    assert run(dev, "approve", made, "--yes").returncode == 0
    assert run(dev, "tail", made).returncode == 0
    assert made not in run(dev, "inbox").stdout
    refused = run(dev, "pause", made)
    assert (refused.returncode, refused.stdout) == (4, "")


def test_what_people_see(dev: Dev, source: Path) -> None:
    made = started(dev, source)
    shown = run(dev, "show", made).stdout
    assert "waiting for approval" in shown
    assert f"towline run approve {made}" in shown
    assert made in run(dev, "list").stdout
    cancelled = run(dev, "cancel", made, "--reason", "enough")
    assert (cancelled.returncode, cancelled.stderr) == (0, "")
    tailed = run(dev, "tail", made)
    assert tailed.returncode == 1, "a cancelled run is no success"
    assert "cancelled by user:" in tailed.stdout
    assert "enough" in tailed.stdout


@pytest.mark.parametrize(("answer", "code", "status"), [("y", 0, "approved"), ("n", 1, None)])
def test_a_person_is_shown_what_is_decided_and_asked(
    dev: Dev, source: Path, answer: str, code: int, status: str | None
) -> None:
    made = started(dev, source)
    asked = waiting(dev, made)[0]
    ours, theirs = pty.openpty()
    os.write(ours, f"{answer}\n".encode())
    environment = {**os.environ, "COLUMNS": "300"}
    done = towline("run", "approve", made, "--data", dev.data, stdin=theirs, env=environment)
    os.close(theirs)
    os.close(ours)
    assert done.returncode == code, done.stderr
    assert asked["request"]["digest"] in done.stderr
    assert asked["request"]["proposal"]["blast_radius"] in done.stderr
    outcome = dev.get(f"/v1/runs/{made}/requests/{asked['id']}").body.get("outcome")
    assert outcome == status
    run(dev, "cancel", made)


def test_nobody_to_ask_decides_nothing(dev: Dev, source: Path) -> None:
    made = started(dev, source)
    done = run(dev, "reject", made)
    assert done.returncode == 2
    assert "--yes" in done.stderr
    assert waiting(dev, made)
    assert run(dev, "reject", made, "--yes", "--comment", "not today").returncode == 0
    again = run(dev, "approve", made, "--yes")
    assert again.returncode == 4
    assert "asks for no approval" in said(again)


def test_a_signal_is_sent_and_the_run_goes_on(dev: Dev, tmp_path: Path) -> None:
    body = json.dumps({"ledger": str(tmp_path / "ledger")})
    made = lines(run(dev, "start", "journey", "--input", body, "--json"))[0]["id"]
    assert lines(run(dev, "send", made, "go", '"onward"', "--id", "k1", "--json"))[0]["duplicate"] is False
    assert lines(run(dev, "send", made, "go", '"onward"', "--id", "k1", "--json"))[0]["duplicate"] is True
    assert run(dev, "send", made, "go", '"elsewhere"', "--id", "k1").returncode == 4
    wait_until_sync(lambda: any(w["kind"] == "approval" for w in waiting(dev, made)), "the approval", timeout_s=60)
    assert run(dev, "approve", made, "--yes").returncode == 0
    assert run(dev, "tail", made, "--json").returncode == 0


def test_an_interrupted_tail_says_how_to_go_on(dev: Dev, source: Path) -> None:
    made = started(dev, source)
    with subprocess.Popen(
        [*TOWLINE, "run", "tail", made, "--data", dev.data], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as tail:
        assert tail.stdout is not None
        while "run.waiting" not in tail.stdout.readline():
            pass
        tail.send_signal(signal.SIGINT)
        _, err = tail.communicate(timeout=30)
    assert tail.returncode == 130
    assert f"towline run tail {made} --after " in err
    run(dev, "cancel", made)


def test_the_same_key_starts_one_run(dev: Dev, source: Path) -> None:
    arguments = ("start", "review", "--path", source, "--key", "one", "--json")
    first, second = lines(run(dev, *arguments))[0]["id"], lines(run(dev, *arguments))[0]["id"]
    assert first == second
    run(dev, "cancel", first)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["start", "nothing-like-it"], 2, "workflow"),
        (["start", "review", "--path", "/etc"], 2, "input.source.path"),
        (["start", "review", "--input", "{"], 2, "not JSON"),
        (["start", "review", "--input", "@/no/such/file"], 2, "cannot be read"),
        (["start", "review", "--label", "x"], 2, "NAME=VALUE"),
        (["start"], 2, "workflow"),
        (["show", "run_00000000000000000000000000"], 3, "no such run"),
        (["tail", "nobody"], 3, "no such run"),
        (["tail", "nobody", "--after", "yesterday"], 3, "no such run"),
        (["approve", "nobody", "--yes"], 3, "no such run"),
        (["cancel", "nobody"], 3, "no such run"),
        (["artifacts", "nobody"], 3, "no such run"),
        (["list", "--status", "sleepy"], 2, "status"),
        (["list", "--token", "nonsense"], 6, "credential"),
        (["list", "--url", "http://127.0.0.1:9", "--token", "x"], 5, "no answer from http://127.0.0.1:9"),
        (["list", "--url", "http://127.0.0.1:9"], 2, "--token"),
        (["list", "--url", "127.0.0.1"], 2, "http://"),
    ],
)
def test_what_is_wrong_is_one_line_and_a_code(dev: Dev, arguments: list[str], code: int, words: str) -> None:
    done = run(dev, *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert words in said(done)
