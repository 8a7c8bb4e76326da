"""The page that slept, or whose network was away, finds out at once and goes on from its cursor.

The symptom: after sleep the socket still said OPEN while nothing came, and a person had to reload.
"""

import contextlib
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser

from tests.support.cable import Cable
from tests.support.dev import Dev
from tests.support.http_hand import HttpHand
from tests.support.sleeping_tab import SleepingTab, sleeping_tab
from tests.support.waiting import wait_until_sync

pytestmark = [pytest.mark.browser, pytest.mark.processes]


@contextlib.contextmanager
def console(browser: Browser, line: Cable, dev: Dev, run: str) -> Iterator[SleepingTab]:
    with sleeping_tab(browser, f"{line.url}/#token={dev.token}&run={run}") as tab:
        yield tab


def seqs(tab: SleepingTab) -> list[int]:
    texts = tab.evaluate("() => [...document.querySelectorAll('#log li span:first-child')].map((e) => e.textContent)")
    return [int(text) for text in texts]


def is_connected(tab: SleepingTab) -> bool:
    return bool(tab.evaluate("() => document.getElementById('link').textContent === 'Connected'"))


@pytest.mark.parametrize("network", ["stays", "goes"])
def test_the_page_sleeps_and_catches_up(
    browser: Browser, line: Cable, dev: Dev, agent: httpx.Client, network: str
) -> None:
    hand = HttpHand(agent)
    with console(browser, line, dev, hand.run) as tab:
        wait_until_sync(lambda: hand.head in seqs(tab), "the page to show the run")
        tab.freeze()
        if network == "goes":
            line.silence()
        hand.note(20)
        line.mend()
        tab.thaw()
        wait_until_sync(lambda: hand.head in seqs(tab), "the page to catch up")
        assert seqs(tab) == list(range(1, hand.head + 1))
        assert is_connected(tab)


def test_the_page_finds_out_that_the_network_was_away(
    browser: Browser, line: Cable, dev: Dev, agent: httpx.Client
) -> None:
    hand = HttpHand(agent)
    with console(browser, line, dev, hand.run) as tab:
        wait_until_sync(lambda: hand.head in seqs(tab), "the page to show the run")
        line.silence()
        hand.note(20)
        tab.evaluate("() => dispatchEvent(new Event('online'))")
        wait_until_sync(lambda: not is_connected(tab), "the page to give the connection up")
        line.mend()
        line.cut()  # what the page tried meanwhile would hang for ten seconds
        wait_until_sync(lambda: hand.head in seqs(tab), "the page to catch up")
        assert seqs(tab) == list(range(1, hand.head + 1))
