"""Crash points: parsed strictly, counted from the moment they are armed, never armed on a real store."""

import logging
from pathlib import Path

import pytest

from tests.support.server import StoreServer
from towline.protocol.store.crash_points import VARIABLE, BadCrashPoint, CrashPoint, connect, names, parse
from towline.protocol.store.redis import RedisStore


class Ended(BaseException):
    """Stands for the end of the process."""


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def end(self: CrashPoint) -> None:
        raise Ended

    monkeypatch.setattr(CrashPoint, "_end", end)


def test_there_is_one_before_and_one_after_each_script() -> None:
    assert {"before:commit", "after:commit", "before:claim_run", "after:close_run"} <= set(names())
    assert len(names()) == len(set(names())) > 10


@pytest.mark.parametrize(
    "text", ["", "commit", "commit:1", "before:commit", "before:commit:0", "before:nothing:1", "at:commit:1"]
)
def test_a_point_that_does_not_exist_is_refused_with_those_that_do(text: str) -> None:
    with pytest.raises(BadCrashPoint, match="before:commit"):
        parse(text)


def test_the_nth_hit_ends_the_process(ends: None) -> None:
    point = parse("before:commit:3")
    point.is_armed = True
    for name in ["before:commit", "after:commit", "before:claim_run", "before:commit"]:
        point(name)
    with pytest.raises(Ended):
        point("before:commit")


def test_hits_count_from_the_arming(ends: None) -> None:
    point = parse("before:commit:1")
    point("before:commit")
    point.is_armed = True
    with pytest.raises(Ended):
        point("before:commit")


@pytest.mark.store
async def test_a_real_store_disarms_it(tmp_path: Path, caplog: pytest.LogCaptureFixture, ends: None) -> None:
    with StoreServer(tmp_path) as server:
        with caplog.at_level(logging.WARNING):
            store = await connect(server.url, {VARIABLE: "before:accept_command:1"})
        assert isinstance(probe := store._scripts._probe, CrashPoint)
        assert not probe.is_armed
        await store.aclose()
    assert "is set and ignored" in caplog.text


@pytest.mark.store
async def test_a_store_made_for_tests_arms_it(tmp_path: Path) -> None:
    with StoreServer(tmp_path) as server:
        await (await RedisStore.connect(server.url, for_tests=True)).aclose()
        store = await connect(server.url, {VARIABLE: "before:commit:2"})
        probe = store._scripts._probe
        assert isinstance(probe, CrashPoint)
        assert probe.is_armed
        await store.aclose()
        store = await connect(server.url, {})
        assert store._scripts._probe is None
        await store.aclose()
