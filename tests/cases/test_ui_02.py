"""The page says of each status what it is: live, after a reload, and after a reconnect that missed the change.

The symptom: only `completed` took the sign of work away, so a run that was paused, waiting or failed seemed to work.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, Route, WebSocketRoute, expect

from tests.support.cable import Cable
from tests.support.chromium import tab
from tests.support.dev import Dev
from tests.support.http_hand import HttpHand

pytestmark = [pytest.mark.browser, pytest.mark.processes]

ASK: dict[str, Any] = {"id": "q", "kind": "signal", "title": "?", "may_answer": True, "request": None}
FAILED: dict[str, Any] = {
    "error": {"type": "Boom", "message": "it broke", "retryable": False},
    "verified": None,
    "claims": [],
}
DONE: dict[str, Any] = {"result": None, "error": None, "claims": []}
CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "queued": ({"status": "queued"}, "^Queued$", "queued"),
    "paused": ({"status": "paused", "status_detail": {"code": "user", "text": None}}, "^Paused: user$", "paused"),
    "waiting": ({"status": "waiting", "waiting_on": [{**ASK, "may_answer": False}]}, "^Waiting", "waiting"),
    "waiting for you": ({"status": "waiting", "waiting_on": [ASK]}, "^Waiting for your decision$", "waiting"),
    "blocked": (
        {"status": "blocked", "status_detail": {"code": "poison", "text": None}},
        "^Blocked: poison$",
        "blocked",
    ),
    "stopping": ({"stopping": {"deadline": "2030-01-01T00:00:00.000Z"}}, "^Stopping; ends by", "waiting"),
    "completed": (
        {"status": "completed", "outcome": {**DONE, "verified": True}},
        "^Completed and verified$",
        "completed",
    ),
    "not verified": ({"status": "completed", "outcome": {**DONE, "verified": False}}, "NOT verified$", "failed"),
    "failed": ({"status": "failed", "outcome": FAILED}, "^Failed: Boom: it broke$", "failed"),
    "cancelled": ({"status": "cancelled", "outcome": {**DONE, "verified": None}}, "^Cancelled$", "cancelled"),
    "of a later version": ({"status": "hibernating"}, "^Hibernating$", "hibernating"),
}


class Between:
    """Sits between the page and the gateway, and changes what the gateway says of one run's status."""

    def __init__(self, page: Page, run: str) -> None:
        self.change: dict[str, Any] = {}
        self.socket: WebSocketRoute | None = None
        self._run = run
        page.route(f"**/v1/runs/{run}", self._answer)
        page.route_web_socket("**/v1/socket", self._connect)

    def _answer(self, route: Route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, json={**answer.json(), **self.change})

    def _connect(self, socket: WebSocketRoute) -> None:
        self.socket = socket
        server = socket.connect_to_server()
        server.on_message(lambda message: socket.send(self._changed(message)))

    def _changed(self, message: str | bytes) -> str:
        frame = json.loads(message)
        if frame["op"] == "subscribed":
            frame["projection"] |= self.change
        return json.dumps(frame)

    def drop(self) -> None:
        assert self.socket is not None
        self.socket.close(code=4000)

    def say(self, **frame: Any) -> None:
        assert self.socket is not None
        self.socket.send(json.dumps({"run": self._run, **frame}))


@pytest.fixture
def opened(browser: Browser, line: Cable, dev: Dev, agent: httpx.Client) -> Iterator[tuple[Page, Between, HttpHand]]:
    hand = HttpHand(agent)
    with tab(browser) as page:
        page.add_init_script("Math.random = () => 0")  # no wait before a reconnect
        between = Between(page, hand.run)
        page.goto(f"{line.url}/#token={dev.token}&run={hand.run}")
        expect(page.locator("#status")).to_have_text("Running")
        yield page, between, hand


def assert_shown(page: Page, words: str, style: str) -> None:
    expect(page.locator("#status")).to_have_text(re.compile(words))
    expect(page.locator("#status")).to_have_class(style)
    assert re.search(words.strip("^$"), page.title())


def test_each_status_is_shown_as_what_it_is(opened: tuple[Page, Between, HttpHand]) -> None:
    page, between, hand = opened
    for change, words, style in CASES.values():
        between.change = change
        hand.note()
        assert_shown(page, words, style)
        page.reload()
        assert_shown(page, words, style)
        between.change = {}
        hand.note()
        assert_shown(page, "^Running$", "running")
        between.change = change
        between.drop()
        assert_shown(page, words, style)


def test_what_a_later_version_says_breaks_nothing(opened: tuple[Page, Between, HttpHand]) -> None:
    page, between, hand = opened
    flux = {"seq": hand.head + 1, "ts": "2030-01-01T00:00:00.000Z", "type": "quantum.flux", "data": {"a": [1]}}
    between.say(op="teleport", where="elsewhere")
    between.say(op="events", events=[{**flux, "actor": {"kind": "ghost", "id": None}}], cursor=f"{hand.head + 1}-1")
    expect(page.locator("#log li").last).to_contain_text('quantum flux: {"a":[1]}')
    expect(page.locator("#status")).to_have_text("Running")
