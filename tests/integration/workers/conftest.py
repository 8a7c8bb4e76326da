"""A stage for each test of this folder."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.workers import Stage, stage
from towline.workers.registry import Registry


@pytest.fixture
def registry() -> Registry:
    """The definitions of one test."""
    return Registry()


@pytest.fixture
async def workers(redis_url: str, tmp_path: Path, registry: Registry) -> AsyncIterator[Stage]:
    async with stage(redis_url, tmp_path, registry) as made:
        yield made
