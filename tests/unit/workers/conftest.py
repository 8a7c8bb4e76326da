"""Fixtures of the worker's unit tests: workflows driven by hand, closed when the test ends."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.driven import Driven
from towline.workers.registry import Registry


@pytest.fixture
def drive() -> Iterator[Any]:
    """`drive(fn)`: the function as a workflow that knows the signal `go`, held on a toy log."""
    made: list[Driven] = []

    def start(fn: Any, **options: Any) -> Driven:
        definition = Registry().workflow(name="test", signals={"go": int})(fn)
        made.append(Driven(definition, **options))
        return made[-1]

    yield start
    for driven in made:
        driven.close()
