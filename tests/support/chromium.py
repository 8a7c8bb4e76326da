"""Chromium for tests: one that is started, and tabs whose page may not do wrong.

Promises that a page which logs an error, throws or breaks its content policy fails its test. A test module in an
event loop must not have one running: Playwright's own loop would be in the way.
"""

import contextlib
import shutil
from collections.abc import Iterator

from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

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


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """A browser until the block ends."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next((path for name in names if (path := shutil.which(name))), None)
    assert found, "the browser tests need chromium on PATH; install your system's package 'chromium'"
    with sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=found, args=ARGUMENTS)
        yield launched
        launched.close()


@contextlib.contextmanager
def tab(browser: Browser) -> Iterator[Page]:
    """A fresh tab of a fresh profile. When the block ends, its page must have done nothing wrong."""
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
