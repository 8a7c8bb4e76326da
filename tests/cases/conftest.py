"""Fixtures of the cases: one real gateway over a real store."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.gateway import RunningGateway, running_gateway


@pytest.fixture
async def gateway(redis_url: str, tmp_path: Path) -> AsyncIterator[RunningGateway]:
    async with running_gateway(redis_url, tmp_path) as running:
        yield running
