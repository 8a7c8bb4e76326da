"""What leaves of an exception: a problem without its words, and one line of log that says where and not what."""

import logging

import pytest

from towline.gateway.problems import problem_of, whereabouts
from towline.protocol.store import api


def failed(depth: int = 0) -> Exception:
    try:
        if depth:
            raise failed(depth - 1)
        raise ValueError("canary\nforged line")
    except Exception as error:
        return error


def test_a_fault_is_told_by_its_kind_and_place_alone(caplog: pytest.LogCaptureFixture) -> None:
    error = RuntimeError("canary")
    error.__cause__ = failed()
    told = problem_of(error, "req_1").to_wire("req_1")
    assert (told["code"], "canary" in str(told), "RuntimeError" in str(told)) == ("internal", False, False)
    (record,) = caplog.records
    line = logging.Formatter("%(message)s").format(record)
    assert "req_1" in line
    assert "RuntimeError at nowhere; after ValueError at test_problems.py" in line
    assert "canary" not in line
    assert "\n" not in line


def test_groups_and_long_chains_stay_short() -> None:
    group = ExceptionGroup("canary", [failed(), failed(3)])
    line = whereabouts(group)
    assert line.count("ValueError at") >= 2
    assert "canary" not in line
    assert len(line) < 10_000


@pytest.mark.parametrize("kind", [api.StoreUnavailable, api.StoreFull, api.NoRun, api.RunGone, api.RunClosed])
def test_the_words_of_the_store_stay_here(kind: type[api.StoreError]) -> None:
    assert "canary" not in str(problem_of(kind("canary"), "req_1").to_wire())
