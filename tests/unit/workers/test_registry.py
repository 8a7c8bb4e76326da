"""Definitions: what registers, what does not, and how values are coded."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from towline.workers import Context
from towline.workers.registry import RegistrationError, Registry, Retry, encode_value


class Page(msgspec.Struct):
    url: str
    size: int


async def fetch(url: str, pair: tuple[int, Page], *more: int) -> Page: ...  # type: ignore[empty-body]


async def read_page(url: str, pair: tuple[int, list[Page]], depth: int = 3) -> Page:
    return Page(url, depth + pair[0])


def test_a_write_must_be_repeatable() -> None:
    registry = Registry()

    def pay(amount: int) -> None: ...

    with pytest.raises(RegistrationError, match=r"activity 'pay'.*idempotent=True.*read_back"):
        registry.activity(pay)
    registry.activity(pay, idempotent=True)
    registry.activity(pay, name="pay_2", read_back=lambda amount: None)
    registry.activity(pay, name="pay_3", effect="none")


def test_a_workflow_says_what_a_busy_thread_does() -> None:
    registry = Registry()

    async def run(ctx: Context) -> None: ...

    assert registry.workflow(name="plain")(run).on_busy is None
    assert registry.workflow(name="strict", on_busy="reject")(run).on_busy == "reject"
    with pytest.raises(RegistrationError, match="enqueue, reject, interrupt"):
        registry.workflow(name="odd", on_busy="dance")(run)  # type: ignore[arg-type]


def test_arguments_are_recorded_by_position_with_defaults_and_come_back_as_declared() -> None:
    made = Registry().activity(read_page, effect="read")
    raw = made.encode_args(("u",), {"pair": (1, [Page("p", 2)])})
    assert msgspec.json.decode(raw) == ["u", [1, [{"url": "p", "size": 2}]], 3]
    assert made.decode_args(raw) == ("u", (1, [Page("p", 2)]), 3)
    assert made.decode_result(b'{"url":"x","size":1}') == Page("x", 1)


def test_arguments_that_do_not_fit_are_named() -> None:
    made = Registry().activity(read_page, effect="read")
    with pytest.raises(TypeError, match="missing a required argument"):
        made.encode_args(("u",), {})
    with pytest.raises(TypeError, match="the arguments of read_page cannot be recorded"):
        made.encode_args(("u", object()), {})


def test_a_variadic_activity_does_not_register() -> None:
    with pytest.raises(RegistrationError, match="parameter 'more'"):
        Registry().activity(fetch, effect="read")


def test_a_type_that_cannot_be_recorded_does_not_register() -> None:
    class Odd:
        pass

    def work(value: dict[tuple[int, ...], set[Any]]) -> None: ...

    def worse(value: "msgspec.Struct | Page") -> None: ...

    Registry().activity(work, effect="none")
    with pytest.raises(RegistrationError, match="cannot be recorded"):
        Registry().activity(worse, effect="none")


def test_a_workflow_is_an_async_function_of_ctx_and_one_input() -> None:
    registry = Registry()

    def sync(ctx: Context) -> None: ...
    async def many(ctx: Context, one: int, two: int) -> None: ...
    async def fine(ctx: Context, page: Page) -> None: ...

    with pytest.raises(RegistrationError, match="async def"):
        registry.workflow(name="sync")(sync)  # type: ignore[arg-type]
    with pytest.raises(RegistrationError, match="at most one input"):
        registry.workflow(name="many")(many)
    with pytest.raises(RegistrationError, match="identifier"):
        registry.workflow(name="not good")(fine)
    made = registry.workflow(name="fine", version="7")(fine)
    assert registry.workflow_for("fine", "7") is made
    assert registry.workflow_for("fine", "8") is None
    assert made.decode_input(b'{"url":"a","size":1}') == Page("a", 1)
    assert made.input_schema()["$ref"] == "#/$defs/Page"


def test_two_functions_under_one_name_do_not_register_but_a_module_may_be_loaded_twice() -> None:
    registry = Registry()

    async def one(ctx: Context) -> None: ...
    async def two(ctx: Context) -> None: ...

    registry.workflow(name="same")(one)
    registry.workflow(name="same")(one)
    with pytest.raises(RegistrationError, match="registered already"):
        registry.workflow(name="same")(two)


def test_retry_waits_grow_with_full_jitter_and_are_the_same_for_the_same_step() -> None:
    policy = Retry(first=timedelta(seconds=1), factor=2, longest=timedelta(seconds=5))
    waits = [[policy.wait_ms(f"step {n}", attempt) for n in range(200)] for attempt in (1, 2, 3, 9)]
    for drawn, ceiling_ms in zip(waits, (1_000, 2_000, 4_000, 5_000), strict=True):
        assert 0 <= min(drawn) < ceiling_ms * 0.1
        assert ceiling_ms * 0.9 < max(drawn) <= ceiling_ms
    assert waits[0] == [policy.wait_ms(f"step {n}", 1) for n in range(200)]


def test_some_errors_heal_by_no_repetition() -> None:
    policy = Retry(never=(ValueError, "ConnectionRefusedError"))
    assert not policy.heals(UnicodeDecodeError("utf-8", b"", 0, 1, "x"))  # a ValueError
    assert not policy.heals(ConnectionRefusedError())
    assert policy.heals(OSError())
    with pytest.raises(RegistrationError):
        Retry(attempts=0)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_json_does_not_know_is_refused_and_not_made_null(number: float) -> None:
    for value in (number, [1.5, {"deep": (number,)}], Page("a", number)):  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"the result of x cannot be recorded: .*finite"):
            encode_value(value, "the result of x")
    assert encode_value([None, 1.5, "nan"], "x") == b'[null,1.5,"nan"]'
