"""Fixtures that every layer may use. Fixtures of one layer live in that layer's own conftest."""

from collections.abc import Iterator

import pytest

from tests.support.server import StoreServer
from tests.support.soak import SOAK


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leaves out what is marked `soak`, unless this is a soak session."""
    if item.get_closest_marker("soak") and not SOAK:
        pytest.skip("a long test; tests/run --soak runs it")


@pytest.fixture(scope="session")
def store_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    """One server for the whole session. A test that kills it must have it restarted again."""
    with StoreServer(tmp_path_factory.mktemp("store")) as server:
        yield server


@pytest.fixture
def redis_url(store_server: StoreServer) -> str:
    """The address of the session's server, emptied for this test."""
    store_server.ensure_running()
    store_server.flush()
    return store_server.url
