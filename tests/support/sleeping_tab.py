"""A tab that can be put to sleep.

Playwright keeps the pages it made awake: to the page it always looks as if somebody looks at it, so it is never frozen.
This one is made beside it over the browser's own protocol. Promises `evaluate` as a Playwright page has it; when the
block ends the tab is gone.
"""

import contextlib
import itertools
import json
from collections.abc import Iterator
from typing import Any

from playwright.sync_api import Browser, CDPSession

from tests.support.waiting import wait_until_sync


class SleepingTab:
    """One tab. Make it with `sleeping_tab`."""

    def __init__(self, session: CDPSession, target: str) -> None:
        self._session = session
        self._target = target
        self._numbers = itertools.count(1)
        self._answers: dict[int, dict[str, Any]] = {}
        session.on("Target.receivedMessageFromTarget", self._receive)
        self._page = session.send("Target.attachToTarget", {"targetId": target, "flatten": False})["sessionId"]

    def _receive(self, event: dict[str, Any]) -> None:
        message = json.loads(event["message"])
        if "id" in message:
            self._answers[message["id"]] = message

    def _send(self, method: str, **parameters: Any) -> Any:
        number = next(self._numbers)
        message = json.dumps({"id": number, "method": method, "params": parameters})
        self._session.send("Target.sendMessageToTarget", {"sessionId": self._page, "message": message})

        def answer() -> dict[str, Any] | None:
            self._session.send("Target.getTargetInfo", {"targetId": self._target})  # events arrive while it waits
            return self._answers.pop(number, None)

        answered = wait_until_sync(answer, f"the answer to {method}")
        assert answered is not None
        assert "error" not in answered, answered
        return answered["result"]

    def evaluate(self, function: str, argument: Any = None) -> Any:
        """What the JavaScript function returns."""
        text = f"({function})({json.dumps(argument)})"
        result = self._send("Runtime.evaluate", expression=text, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def freeze(self) -> None:
        """The page sleeps: no timer, no event, no promise goes on."""
        self._send("Page.setWebLifecycleState", state="frozen")

    def thaw(self) -> None:
        """The page wakes, and is told so by the event `resume`."""
        self._send("Page.setWebLifecycleState", state="active")


@contextlib.contextmanager
def sleeping_tab(browser: Browser, url: str) -> Iterator[SleepingTab]:
    """A tab at `url`, in a profile of its own."""
    session = browser.new_browser_cdp_session()
    profile = session.send("Target.createBrowserContext")["browserContextId"]
    target = session.send("Target.createTarget", {"url": url, "browserContextId": profile})["targetId"]
    try:
        tab = SleepingTab(session, target)
        wait_until_sync(lambda: _is_loaded(tab), f"{url} to be loaded")
        yield tab
    finally:
        session.send("Target.disposeBrowserContext", {"browserContextId": profile})
        session.detach()


def _is_loaded(tab: SleepingTab) -> bool:
    with contextlib.suppress(AssertionError):  # between two documents there is none to ask
        return bool(tab.evaluate("() => location.href !== 'about:blank' && document.readyState === 'complete'"))
    return False
