"""Eight tabs at once over plain HTTP/1.1: each shows its run live, and the last can still decide.

The symptom: each tab held streams, and at six connections for an origin the browser let everything else wait.
"""

import re

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.support.cable import Cable
from tests.support.dev import Dev
from tests.support.http_hand import HttpHand

pytestmark = [pytest.mark.browser, pytest.mark.processes]

TABS = 8
PROPOSAL = {"intent": "Do it", "lineage": [], "permissions": [], "blast_radius": "Nothing", "rollback": "Undo it"}


def test_the_eighth_tab_works(page: Page, line: Cable, dev: Dev, agent: httpx.Client) -> None:
    hands = [HttpHand(agent) for _ in range(TABS)]
    pages = [page, *(page.context.new_page() for _ in range(TABS - 1))]
    for tab, hand in zip(pages, hands, strict=True):
        tab.goto(f"{line.url}/#token={dev.token}&run={hand.run}")
        tab.get_by_text("Connected").wait_for()
    asked = {"request": "q", "title": "Shall it?", "proposal": PROPOSAL, "deciders": ["role:operator"]}
    hands[-1].write(("approval.requested", asked))
    pages[-1].get_by_role("button", name="Approve").click()
    expect(pages[-1].locator(".ask")).to_have_count(0)
    for tab, hand in zip(pages, hands, strict=True):
        hand.write(("progress.noted", {"text": f"alive: {hand.run}"}))
        expect(tab.locator("#log")).to_contain_text(f"alive: {hand.run}")
    expect(pages[-1].locator("#log")).to_contain_text(re.compile("approval resolved: approved"))
