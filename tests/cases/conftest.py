"""Fixtures of the cases: one real gateway over a real store; a whole stack and a browser for those of the page."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page

from tests.support.cable import Cable, cable
from tests.support.chromium import chromium, tab
from tests.support.dev import Dev
from tests.support.gateway import RunningGateway, running_gateway
from tests.support.http_hand import agent_http


@pytest.fixture
async def gateway(redis_url: str, tmp_path: Path) -> AsyncIterator[RunningGateway]:
    async with running_gateway(redis_url, tmp_path) as running:
        yield running


@pytest.fixture(scope="session")
def line() -> Iterator[Cable]:
    """The cable through which the page reaches its stack. A test that silences it must mend it."""
    with cable() as made:
        yield made


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with something to fix."""
    folder = tmp_path_factory.mktemp("source") / "shop"
    folder.mkdir()
    (folder / "cart.py").write_text("import os\nimport sys\n\n\ndef total(items):\n    return sum(items)\n")
    return folder


@pytest.fixture(scope="session")
def dev(tmp_path_factory: pytest.TempPathFactory, line: Cable, source: Path) -> Iterator[Dev]:
    """A stack whose page is served at the far end of `line`."""
    data = tmp_path_factory.mktemp("dev") / "data"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOWLINE_GATEWAY_PUBLIC_URL", line.url)
        with Dev(data, "--workers", "1", "--allow-path", source.parent) as running:
            line.port = int(running.url.rpartition(":")[2])
            yield running


@pytest.fixture(scope="session")
def agent(dev: Dev) -> Iterator[httpx.Client]:
    """Somebody's agent, who holds runs that the page shows."""
    with agent_http(dev) as client:
        yield client


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Not for the session: while it is there no other test of this process can have an event loop."""
    with chromium() as launched:
        yield launched


@pytest.fixture
def page(browser: Browser, line: Cable, dev: Dev) -> Iterator[Page]:
    """The page, signed in."""
    with tab(browser) as opened:
        opened.goto(f"{line.url}/#token={dev.token}")
        opened.get_by_text("Connected").wait_for()
        yield opened
