"""`towline dev`: ready means ready, what dies comes back, and nothing is left behind."""

import json
import signal
import socket
import stat
import subprocess
from pathlib import Path

import psutil
import pytest

from tests.support.dev import TOWLINE, Dev, lives, towline
from tests.support.waiting import wait_until, wait_until_sync
from towline.protocol.client.connect import Client
from towline.protocol.verifying import verify

pytestmark = pytest.mark.processes

TOY = Path(__file__).with_name("toy_workflow.py")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


async def run_toy(dev: Dev, steps: int = 3) -> object:
    async with Client(dev.url, dev.token) as client:
        run = await client.start("toy", steps)
        return await client.result(run.id)


async def test_ready_means_that_a_run_of_the_users_own_goes_through(data: Path) -> None:
    with Dev(data, "--workflows", TOY, "--workers", "1") as dev:
        assert dev.get("/readyz").status == 200
        assert {"toy", "review"} <= {each["name"] for each in dev.get("/v1/workflows").body["items"]}
        assert await run_toy(dev) == 3
        assert dev.stop() == 0
        assert not dev.left()
        assert dev.process.stdout is not None
        assert dev.process.stdout.read() == "", "exactly one line on stdout"
        assert not sockets_in(data)


def sockets_in(data: Path) -> list[Path]:
    """Sockets, and the file that says where the stack is."""
    return [*data.rglob("*.sock"), *data.glob("dev.json")]


def test_the_folder_is_private_and_says_where_the_stack_is(data: Path) -> None:
    with Dev(data, "--workers", "1") as dev:
        assert stat.S_IMODE(data.stat().st_mode) == 0o700
        for name in ("dev.json", "secret"):
            assert stat.S_IMODE((data / name).stat().st_mode) == 0o600
        assert json.loads((data / "dev.json").read_text()) == {"url": dev.url, "token": dev.token, "data": str(data)}
        credential = verify((data / "secret").read_text().strip().encode(), dev.token)
        assert (data / ".gitignore").read_text() == "*\n"
        assert sorted(credential.roles) == ["operator", "user"]
        secret = (data / "secret").read_text().strip()
        assert not any(secret in part for process in dev.family for part in process.cmdline())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_end_it_as_cleanly(data: Path, number: signal.Signals) -> None:
    with Dev(data, "--workers", "1") as dev:
        assert dev.stop(number) == 0
        assert not dev.left()


@pytest.mark.parametrize("victim", ["worker", "gateway", "valkey-server"])
async def test_what_is_killed_is_started_again_and_works(data: Path, victim: str) -> None:
    with Dev(data, "--workflows", TOY, "--workers", "1") as dev:
        first = dev.child(victim)
        first.kill()
        await wait_until(lambda: any("is started again in" in line for line in dev.lines), "the line that says it")
        await wait_until(lambda: dev.get("/readyz").status == 200, "the gateway")
        assert await run_toy(dev) == 3
        assert dev.child(victim).pid != first.pid


def test_a_second_one_on_the_folder_is_refused_with_the_reason(data: Path) -> None:
    with Dev(data, "--workers", "1") as dev:
        second = towline("dev", "--data", data, "--port", "0")
        assert second.returncode == 1
        assert second.stderr.strip() == (
            f"towline: {data} is in use by process {dev.process.pid}: stop it, or choose another folder with --data"
        )
        assert dev.get("/readyz").status == 200
        assert (data / "dev.json").exists()


async def test_the_next_one_takes_over_from_one_that_was_killed(data: Path) -> None:
    with Dev(data, "--workflows", TOY, "--workers", "1") as first:
        assert await run_toy(first) == 3
        first.stop(signal.SIGKILL)
        with Dev(data, "--workflows", TOY, "--workers", "1", port=int(first.url.rpartition(":")[2])) as second:
            assert second.url == first.url
            assert await run_toy(second) == 3
            wait_until_sync(lambda: not first.left(), "the end of what the killed one left")


def test_a_minted_token_is_accepted_with_its_role_alone(data: Path) -> None:
    with Dev(data, "--workers", "1") as dev:
        minted = towline("token", "--data", data, "--sub", "ana", "--role", "user", "--ttl", "60")
        assert minted.returncode == 0
        dev.token = minted.stdout.strip()
        assert dev.get("/v1/whoami").body["subject"] == "ana"
        assert dev.get("/v1/whoami").body["roles"] == ["user"]


def test_a_port_that_is_taken_is_named(data: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = towline("dev", "--data", data, "--port", str(port))
    assert refused.returncode == 1
    assert f"127.0.0.1:{port} cannot be used" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


def test_workflows_that_cannot_be_imported_end_it_at_once(data: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("import nothing_of_this_name\n")
    refused = towline("dev", "--data", data, "--port", "0", "--workers", "1", "--workflows", broken)
    assert refused.returncode == 1
    assert "broken.py:1: ModuleNotFoundError" in refused.stderr
    assert "worker-1 cannot start" in refused.stderr.splitlines()[-1]
    assert not sockets_in(data)


def test_ctrl_c_before_it_is_ready_leaves_nothing(data: Path) -> None:
    with subprocess.Popen(
        [*TOWLINE, "dev", "--data", data, "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as early:
        wait_until_sync(lambda: (data / "store" / "url").exists(), "the store")
        family = psutil.Process(early.pid).children(recursive=True)
        early.send_signal(signal.SIGINT)
        assert early.wait(timeout=60) == 0
        assert not any(lives(process) for process in family)
