"""`towline doctor`: it refuses a store that would lose runs, and names the setting to change."""

import json
from pathlib import Path

import pytest

from tests.support.dev import Dev, towline
from tests.support.server import StoreServer
from towline.deploy.doctor import DISK_REFUSE_BYTES, DISK_WARN_BYTES, of_clock, of_disk

pytestmark = pytest.mark.store


@pytest.mark.parametrize(
    ("settings", "code", "remedy"),
    [
        ({"appendonly": "no"}, "appendonly", "Set 'appendonly yes'"),
        ({"maxmemory-policy": "allkeys-lru"}, "eviction", "Set 'maxmemory-policy noeviction'"),
        ({"appendfsync": "no"}, "appendfsync", "Set 'appendfsync always'"),
    ],
)
def test_a_store_that_loses_runs_is_refused(tmp_path: Path, settings: dict[str, str], code: str, remedy: str) -> None:
    with StoreServer(tmp_path, durable=True, settings=settings) as server:
        for_people = towline("doctor", "--url", server.url)
        for_programs = towline("doctor", "--url", server.url, "--json")
        gateway = towline("gateway", "--url", server.url, "--data", tmp_path, env={"TOWLINE_JWT_SECRET": "x" * 32})
        worker = towline("worker", "--url", server.url, "--data", tmp_path)
    assert for_people.returncode == for_programs.returncode == 1
    assert remedy in " ".join(for_people.stdout.split())
    report = json.loads(for_programs.stdout)
    assert report["ok"] is False
    assert [f["code"] for f in report["findings"] if f["severity"] == "refuse"] == [code]
    for process in (gateway, worker):
        assert process.returncode == 2
        assert remedy in process.stderr
        assert len(process.stderr.splitlines()) == 1


def test_what_widens_a_window_is_a_warning(tmp_path: Path) -> None:
    with StoreServer(tmp_path, durable=True, settings={"appendfsync": "everysec"}) as server:
        answer = towline("doctor", "--url", server.url, "--json")
    assert answer.returncode == 0
    assert [(f["code"], f["severity"]) for f in json.loads(answer.stdout)["findings"]] == [("appendfsync", "warn")]


@pytest.mark.processes
def test_the_stack_of_dev_is_fit_for_use(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Dev(data, "--workers", "1") as dev:
        answer = towline("doctor", "--data", data, "--json")
        report = json.loads(answer.stdout)
        assert report["gateway"] == dev.url
        assert report["ok"] is True
        assert abs(report["skew_ms"]) < 1_000
        assert not [f for f in report["findings"] if f["code"] != "disk"]
        assert answer.returncode == 0
        assert "gateway" in towline("doctor", "--data", data).stdout
    gone = towline("doctor", "--data", data)
    assert gone.returncode == 1
    assert "no store runs in" in gone.stderr


def test_clocks_apart_are_a_warning_only_when_it_is_certain() -> None:
    assert of_clock(900, 0) == of_clock(-900, 0) == []
    assert of_clock(1_400, 1_000) == [], "half of the round trip may explain it"
    assert "2.0 s behind" in of_clock(-2_000, 10)[0].text
    assert "2.0 s ahead" in of_clock(2_000, 10)[0].text


def test_a_disk_that_fills_warns_and_then_refuses() -> None:
    assert of_disk(None) == of_disk(DISK_WARN_BYTES) == []
    assert of_disk(DISK_WARN_BYTES - 1)[0].severity == "warn"
    assert of_disk(DISK_REFUSE_BYTES - 1)[0].severity == "refuse"
