"""Problems and close codes: one status and one title a code, as the contract lists them."""

import pytest

from towline.protocol.closecodes import FINAL, CloseCode, may_reconnect
from towline.protocol.errors import CODES, Problem, ProblemError, problem

CONTRACT = {
    "bad_request": 400, "unauthenticated": 401, "forbidden": 403, "not_found": 404, "conflict": 409,
    "already_decided": 409, "expired": 410, "run_closed": 409, "fenced": 409, "unsupported": 409, "held": 409,
    "idempotency_mismatch": 409, "gone": 410, "digest_mismatch": 412, "too_large": 413, "unsupported_media": 415,
    "rate_limited": 429, "overloaded": 503, "unavailable": 503, "internal": 500,
}  # fmt: skip


def test_the_codes_are_those_of_the_contract() -> None:
    assert {code: status for code, (status, _) in CODES.items()} == CONTRACT
    assert all(title and title[0].isupper() for _, title in CODES.values())


def test_a_problem_on_the_wire() -> None:
    wire = Problem("too_large", "It is 2 MiB; send less.", limit=5).to_wire("req_1")
    assert wire == {
        "type": "https://towline.dev/problems/too_large",
        "title": "Too large",
        "status": 413,
        "code": "too_large",
        "detail": "It is 2 MiB; send less.",
        "limit": 5,
        "request_id": "req_1",
    }
    assert "request_id" not in Problem("gone", "x").to_wire()


def test_a_limit_of_zero_and_an_empty_list_are_said() -> None:
    assert (
        Problem("forbidden", "x", max=0, known=[]).to_wire() | {"max": 0, "known": []}
        == Problem("forbidden", "x", max=0, known=[]).to_wire()
    )


def test_a_code_outside_the_list_is_a_bug() -> None:
    with pytest.raises(ValueError, match="no problem code"):
        raise problem("nope", "x")
    error = problem("gone", "It was deleted.")
    assert isinstance(error, ProblemError)
    assert str(error) == "gone: It was deleted."


@pytest.mark.parametrize("code", [1000, 1001, 1006, 1011, 1012, 4000, 4001, 4005, 4008, 4010, 4013, 4029, 4499, 3000])
def test_these_closes_bring_a_client_back(code: int) -> None:
    assert may_reconnect(code)


@pytest.mark.parametrize("code", [1002, 1003, 1007, 1008, 1009, 1010, 4500, 4501, 4503, 4505, 4506, 4999])
def test_these_do_not(code: int) -> None:
    assert not may_reconnect(code)


def test_every_named_close_code_is_where_the_contract_puts_it() -> None:
    final = {code.name for code in CloseCode if not may_reconnect(code)}
    assert final == {
        "NOT_A_FRAME", "BAD_CREDENTIAL", "FORBIDDEN", "TOO_MANY_CONNECTIONS", "NO_SUBPROTOCOL", "INVALID_DATA",
        "TOO_LARGE",
    }  # fmt: skip
    assert CloseCode.TOO_LARGE in FINAL
