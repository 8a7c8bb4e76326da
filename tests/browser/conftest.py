"""A real stack and a real Chromium, for the page.

Promises that a page which logs an error, throws or breaks its content policy fails its test.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Playwright, sync_playwright

from tests.support.dev import Dev

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
EXPECTED = ("net::ERR_CONNECTION_REFUSED", "WebSocket connection to", "status of 4")
"""What Chromium itself logs when a server is away or refuses; that is not the page's fault."""


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
def playwright() -> Iterator[Playwright]:
    with sync_playwright() as driver:
        yield driver


@pytest.fixture(scope="session")
def browser(playwright: Playwright) -> Iterator[Browser]:
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next((path for name in names if (path := shutil.which(name))), None)
    assert found, "the browser tests need chromium on PATH; install your system's package 'chromium'"
    launched = playwright.chromium.launch(executable_path=found, args=ARGUMENTS)
    yield launched
    launched.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A fresh tab of a fresh profile."""
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    context.set_default_timeout(30_000)
    faults = list[str]()

    def note(message: ConsoleMessage) -> None:
        if message.type == "error" and not any(known in message.text for known in EXPECTED):
            faults.append(message.text)

    opened = context.new_page()
    opened.on("console", note)
    opened.on("pageerror", lambda error: faults.append(str(error)))
    yield opened
    context.close()
    assert faults == []


@pytest.fixture
def signed_in(page: Page, dev: Dev) -> Page:
    """The page, signed in as `towline dev` prints it."""
    page.goto(f"{dev.url}/#token={dev.token}")
    page.get_by_text("Connected").wait_for()
    return page
