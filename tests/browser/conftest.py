"""A real stack and a real Chromium, for the page.

Promises that a page which logs an error, throws or breaks its content policy fails its test.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from tests.support.chromium import chromium, tab
from tests.support.dev import Dev


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with something to find and to fix."""
    source = tmp_path_factory.mktemp("source") / "shop"
    source.mkdir()
    (source / "cart.py").write_text("import os\nimport sys\n\n\ndef total(items):\n    return sum(items)\n")
    (source / "broken.py").write_text("def nothing(:\n")
    return source


@pytest.fixture(scope="session")
def dev(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[Dev]:
    with Dev(tmp_path_factory.mktemp("dev") / "data", "--workers", "1", "--allow-path", folder.parent) as running:
        yield running


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with chromium() as launched:
        yield launched


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A fresh tab of a fresh profile."""
    with tab(browser) as opened:
        yield opened


@pytest.fixture
def signed_in(page: Page, dev: Dev) -> Page:
    """The page, signed in as `towline dev` prints it."""
    page.goto(f"{dev.url}/#token={dev.token}")
    page.get_by_text("Connected").wait_for()
    return page
