"""The lab of the integration tests: a fresh store on the session's server."""

from collections.abc import AsyncIterator

import pytest

from tests.support.lab import Lab, open_lab


@pytest.fixture
async def lab(redis_url: str) -> AsyncIterator[Lab]:
    async with open_lab(redis_url) as lab:
        yield lab
