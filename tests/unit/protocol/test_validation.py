"""Untrusted JSON: what is wrong is named, what comes through can be encoded again."""

from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, Struct

from towline.protocol.errors import ProblemError
from towline.protocol.validation import MAX_DEPTH, NotJson, read_json, to_type


class Inner(Struct, frozen=True):
    word: Literal["a", "b"] = "a"
    number: Annotated[int, Meta(ge=1, le=5)] = 1


class Outer(Struct, frozen=True):
    id: Annotated[str, Meta(max_length=3)]
    inner: Inner | None = None
    many: list[Inner] = []
    named: dict[str, Literal["x"]] = {}


@pytest.mark.parametrize(
    ("value", "field", "expected", "known"),
    [
        ({}, "id", "a value", None),
        ({"id": 4}, "id", "str", None),
        ({"id": "long"}, "id", "str of length <= 3", None),
        ({"id": "i", "inner": {"number": 6}}, "inner.number", "int <= 5", None),
        ({"id": "i", "inner": {"word": "c"}}, "inner.word", None, ["a", "b"]),
        ({"id": "i", "inner": 5}, "inner", "object | null", None),
        ({"id": "i", "many": [{}, {"word": 5}]}, "many[1].word", "str", None),
        ({"id": "i", "many": [{}, {"word": "c"}]}, "many[1].word", None, ["a", "b"]),
        ({"id": "i", "named": {"k": "y"}}, "named[...]", None, ["x"]),
        ([], None, "object", None),
        (None, None, "object", None),
    ],
)
def test_what_is_wrong_is_named(value: Any, field: str | None, expected: str | None, known: list[str] | None) -> None:
    with pytest.raises(ProblemError) as refused:
        to_type(value, Outer, what="an outer")
    problem = refused.value.problem
    assert (problem.code, problem.field, problem.expected, problem.known) == ("bad_request", field, expected, known)


def test_the_prefix_stands_before_the_field() -> None:
    with pytest.raises(ProblemError) as refused:
        to_type({"word": 4}, Inner, what="it", prefix="data.")
    assert refused.value.problem.field == "data.word"


@pytest.mark.parametrize("text", ["", "{", "nope", "NaN", "'x'", '"\\ud800"', '{"a":}', b"\xff", b'"\xc3"'])
def test_what_is_no_json(text: str | bytes) -> None:
    with pytest.raises(NotJson):
        read_json(text)


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 500, 50_000])
def test_what_is_too_deep(depth: int) -> None:
    for text in ("[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth):
        with pytest.raises(ProblemError, match="deep"):
            read_json(text)
    assert read_json("[" * MAX_DEPTH + "]" * MAX_DEPTH)


@pytest.mark.parametrize("number", ["9" * 30, "-" + "9" * 30, "1e999", "9" * 5000, str(2**64)])
def test_numbers_that_are_too_large(number: str) -> None:
    with pytest.raises(ProblemError, match=r"number|bits"):
        read_json(f'{{"a":[{number}]}}')


@given(st.binary(max_size=300) | st.text(max_size=300))
def test_any_bytes_are_read_or_refused(data: bytes | str) -> None:
    try:
        value = read_json(data)
    except (NotJson, ProblemError):
        return
    assert msgspec.json.decode(msgspec.json.encode(value)) == value
