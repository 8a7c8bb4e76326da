"""The command line when it is called wrongly: one line, what is wrong, what to do, and a code that tells which."""

from pathlib import Path

import pytest

from tests.support.dev import towline
from towline.deploy import cli
from towline.deploy.settings import VARIABLES


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["bogus"], 2, "No such command 'bogus'; see 'towline --help'"),
        (["dev", "--prot", "1"], 2, "see 'towline dev --help'"),
        (["dev", "--port", "x"], 2, "'--port'"),
        (["dev", "--port", "65536"], 2, "'--port'"),
        (["dev", "--workers", "0"], 2, "'--workers'"),
        (["dev", "--data", "{tmp}", "--workflows", "/no/such.py"], 2, "no file /no/such.py"),
        (["dev", "--data", "/dev/null/data"], 1, "/dev/null/data cannot be used"),
        (["dev", "--data", "{tmp}", "--port", "0", "--host", "no.such.host.invalid"], 1, "--host"),
        (["gateway", "--data", "{tmp}"], 1, "start one with 'towline dev --data"),
        (["gateway", "--url", "http://localhost", "--data", "{tmp}"], 2, "redis://"),
        (["worker"], 2, "give --data DIR or --url URL"),
        (["worker", "no_such_module_x", "--data", "{tmp}"], 2, "no module no_such_module_x"),
        (["worker", "--url", "redis://127.0.0.1:1", "--data", "{tmp}"], 1, "start the store, or name another"),
        (["token", "--data", "{tmp}"], 2, "holds no secret yet"),
        (["token", "--role", "god"], 2, "there are user, operator, worker"),
        (["token", "--ttl", "12 parsecs"], 2, "such as 90s, 15m, 12h or 7d"),
        (["token", "--ttl", "0"], 2, "between 0 and ten years"),
        (["doctor", "--url", "redis://127.0.0.1:1"], 1, "the store does not answer"),
        (["demo", "/no/such/folder", "--yes"], 2, "/no/such/folder is no folder"),
        (["demo"], 2, "add --yes"),
    ],
)
def test_one_line_with_the_remedy(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    says: str,
) -> None:
    # In this process, for speed; what a process begins with is left out.
    monkeypatch.setattr(cli, "begin_process", lambda: None)
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert cli.run([part.replace("{tmp}", str(tmp_path / "data")) for part in arguments]) == code
    answer = capsys.readouterr()
    assert answer.out == ""
    assert says in answer.err
    assert answer.err.startswith("towline: ")
    assert len(answer.err.splitlines()) == 1


def test_the_exit_code_leaves_the_process() -> None:
    assert towline("bogus").returncode == 2


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("TOWLINE_JWT_SECERT", ["token"]),
        ("TOWLINE_GATEWAY_PROT", ["gateway", "--url", "redis://127.0.0.1:1", "--data", "x"]),
        ("TOWLINE_WORKER_SLOT", ["worker", "--url", "redis://127.0.0.1:1", "--data", "x"]),
    ],
)
def test_a_misspelt_variable_is_refused(name: str, arguments: list[str]) -> None:
    answer = towline(*arguments, env={name: "1", "TOWLINE_JWT_SECRET": "x" * 32})
    assert answer.returncode == 2
    assert name in answer.stderr
    assert len(answer.stderr.splitlines()) == 1


def test_a_short_secret_is_refused_and_not_shown() -> None:
    answer = towline("token", env={"TOWLINE_JWT_SECRET": "hunter2"})
    assert answer.returncode == 2
    assert "shorter than 32 bytes" in answer.stderr
    assert "hunter2" not in answer.stderr


def test_a_token_alone_on_stdout() -> None:
    answer = towline("token", "--ttl", "90", env={"TOWLINE_JWT_SECRET": "x" * 32})
    assert answer.returncode == 0
    assert answer.stdout.count(".") == 2
    assert len(answer.stdout.split()) == 1


def test_help_names_the_commands_and_the_environment() -> None:
    answer = towline("--help")
    assert answer.returncode == 0
    for word in ("dev", "gateway", "worker", "token", "doctor", "demo", "run", "TOWLINE_JWT_SECRET"):
        assert word in answer.stdout
