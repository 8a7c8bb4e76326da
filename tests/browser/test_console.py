"""The page at `/` in a real browser, before a real gateway and a real worker."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, WebSocket, expect

from tests.support.dev import Dev

pytestmark = [pytest.mark.browser, pytest.mark.processes]

CONSOLE = Path(__file__).resolve().parents[2] / "gateway/towline/gateway/console"
HOSTILE = "<img src=x onerror=document.title=1><b>bold</b>"


def start(page: Page, folder: Path) -> None:
    page.get_by_label("Review a folder").fill(str(folder))
    page.get_by_label("Review a folder").press("Enter")


def wait_for_ask(page: Page) -> None:
    page.get_by_role("button", name="Approve").wait_for()


def seqs(page: Page) -> list[int]:
    return [int(text) for text in page.locator("#log li span:first-child").all_text_contents()]


def run_on_screen(page: Page) -> str:
    return page.url.partition("#run=")[2]


def api(dev: Dev, method: str, path: str, **options: Any) -> Any:
    headers = {"Authorization": f"Bearer {dev.token}"}
    return httpx.request(method, dev.url + path, headers=headers, timeout=40, **options).raise_for_status()


def end(dev: Dev, page: Page) -> None:
    api(dev, "POST", f"/v1/runs/{run_on_screen(page)}/cancel", json={"grace_ms": 0})


def test_the_token_leaves_the_address_and_stays_in_this_tab(signed_in: Page, dev: Dev) -> None:
    assert dev.token not in signed_in.url
    assert signed_in.evaluate("() => sessionStorage.getItem('token')") == dev.token
    assert signed_in.evaluate("() => localStorage.length + document.cookie.length") == 0
    signed_in.reload()
    signed_in.get_by_text("Connected").wait_for()


def test_an_archive_is_sent_and_reviewed(signed_in: Page, dev: Dev, folder: Path, tmp_path: Path) -> None:
    page = signed_in
    page.get_by_role("button", name="Start review").click()
    expect(page.get_by_role("alert")).to_have_text("Name a folder, or choose an archive.")
    page.get_by_label("or an archive").set_input_files(shutil.make_archive(str(tmp_path / "shop"), "zip", folder))
    page.get_by_role("button", name="Start review").click()
    wait_for_ask(page)
    expect(page.locator("#headline")).to_have_text("Review of shop.zip")
    expect(page.get_by_role("alert")).to_be_hidden()
    end(dev, page)


def test_a_review_from_start_to_evidence(signed_in: Page, dev: Dev, folder: Path) -> None:
    page = signed_in
    start(page, folder)
    wait_for_ask(page)
    expect(page.locator("#status")).to_have_text("Waiting for your decision")
    expect(page.locator("#headline")).to_have_text("Review of shop")
    expect(page.locator("#plan li")).to_have_count(6)

    run = api(dev, "GET", f"/v1/runs/{run_on_screen(page)}").json()
    asked = run["waiting_on"][0]["request"]
    shown = page.locator(".ask").inner_text()
    assert asked["digest"] in shown
    for value in asked["proposal"].values():
        for line in [value] if isinstance(value, str) else value:
            assert line in shown

    page.get_by_role("button", name="Approve").click()
    expect(page.locator("#status")).to_have_text(re.compile("^Completed"))
    expect(page.locator(".ask")).to_have_count(0)
    expect(page.locator("#cancel")).to_be_hidden()
    ended = api(dev, "GET", f"/v1/runs/{run['id']}").json()
    assert ended["status"] == "completed"
    expect(page.locator("#claims li")).to_have_count(len(ended["outcome"]["claims"]))
    expect(page.locator("#artifacts li")).to_have_count(ended["artifacts"])
    assert seqs(page) == list(range(1, ended["last_seq"] + 1))

    made = api(dev, "GET", f"/v1/runs/{run['id']}/artifacts").json()["items"][0]
    with page.expect_download() as download:
        page.get_by_role("button", name=made["name"]).click()
    content = api(dev, "GET", f"/v1/runs/{run['id']}/artifacts/{made['id']}").content
    assert Path(download.value.path()).read_bytes() == content
    assert download.value.suggested_filename == made["name"]


def test_a_reload_goes_on_from_the_cursor(signed_in: Page, dev: Dev, folder: Path) -> None:
    page, sent = signed_in, list[dict[str, Any]]()

    def listen(socket: WebSocket) -> None:
        socket.on("framesent", lambda payload: sent.append(json.loads(payload)))

    start(page, folder)
    wait_for_ask(page)
    page.on("websocket", listen)
    before = seqs(page)
    page.reload()
    wait_for_ask(page)
    after = next(frame["after"] for frame in sent if frame["op"] == "subscribe")
    assert int(after.partition("-")[0]) == before[-1]
    assert seqs(page) == before
    page.get_by_role("button", name="Reject").click()
    expect(page.locator("#status")).to_have_text(re.compile("^Completed"))
    assert seqs(page) == list(range(1, api(dev, "GET", f"/v1/runs/{run_on_screen(page)}").json()["last_seq"] + 1))


def test_a_killed_gateway_costs_nothing(signed_in: Page, dev: Dev, folder: Path) -> None:
    page = signed_in
    start(page, folder)
    wait_for_ask(page)
    dev.child("gateway").kill()
    page.get_by_text("Connection lost; the run goes on").wait_for()
    page.get_by_text("Connected").wait_for(timeout=60_000)
    page.get_by_role("button", name="Approve").click()
    expect(page.locator("#status")).to_have_text(re.compile("^Completed"), timeout=60_000)
    assert seqs(page) == list(range(1, api(dev, "GET", f"/v1/runs/{run_on_screen(page)}").json()["last_seq"] + 1))


def test_cancel_asks_first(signed_in: Page, folder: Path) -> None:
    page = signed_in
    start(page, folder)
    wait_for_ask(page)
    page.once("dialog", lambda dialog: dialog.dismiss())
    page.get_by_role("button", name="Cancel run").click()
    expect(page.locator("#status")).to_have_text("Waiting for your decision")
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Cancel run").click()
    expect(page.locator("#status")).to_have_text(re.compile("^Cancelled"))
    expect(page.locator("#runs a[aria-current=page]")).to_contain_text("Cancelled")


def test_a_failure_is_shown_as_one(signed_in: Page, folder: Path) -> None:
    page, empty = signed_in, folder.parent / "empty"
    empty.mkdir()
    start(page, empty)
    expect(page.locator("#status")).to_have_text(re.compile("^Failed: .*nothing to review"))
    expect(page.locator("#status")).to_have_class("failed")
    expect(page.locator("#plan li.failed")).to_have_count(1)
    expect(page.locator("#log li.bad").last).to_contain_text("nothing to review")


def test_what_is_refused_is_said_and_stays(signed_in: Page) -> None:
    page = signed_in
    start(page, Path("/etc"))
    expect(page.get_by_role("alert")).to_contain_text("not a folder below an allowed one")
    assert run_on_screen(page) == ""


def test_text_from_outside_is_only_text(signed_in: Page, dev: Dev, folder: Path) -> None:
    page = signed_in
    body = {"workflow": "review", "input": {"source": {"path": str(folder)}}, "headline": HOSTILE}
    run = api(dev, "POST", "/v1/runs", json=body).json()["id"]
    page.goto(f"{dev.url}/#run={run}")
    wait_for_ask(page)
    expect(page.locator("#headline")).to_have_text(HOSTILE)
    expect(page.locator("#runs a").first).to_contain_text(HOSTILE)
    expect(page.locator("#log")).to_contain_text(HOSTILE)
    assert page.locator("img, #desk b").count() == 0
    end(dev, page)


def test_two_runs_are_not_mixed_up(signed_in: Page, dev: Dev, folder: Path) -> None:
    page = signed_in
    start(page, folder)
    wait_for_ask(page)
    first = run_on_screen(page)
    start(page, folder)
    expect(page).not_to_have_url(re.compile(first))
    wait_for_ask(page)
    assert run_on_screen(page) != first
    end(dev, page)
    expect(page.locator("#status")).to_have_text(re.compile("^Cancelled"))
    page.locator(f"#runs a[href='#run={first}']").click()
    wait_for_ask(page)
    assert seqs(page) == list(range(1, len(seqs(page)) + 1))
    page.go_back()
    expect(page.locator("#status")).to_have_text(re.compile("^Cancelled"))
    expect(page.locator(".ask")).to_have_count(0)


def test_a_bad_token_leads_back_to_the_sign_in(page: Page, dev: Dev) -> None:
    page.goto(f"{dev.url}/#token=nonsense")
    expect(page.get_by_label("Token")).to_be_visible()
    expect(page.get_by_role("alert")).to_contain_text("credential is not valid")
    page.get_by_label("Token").fill(dev.token)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_text("Connected").wait_for()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Token")).to_be_visible()
    assert page.evaluate("() => sessionStorage.getItem('token')") is None


def test_everything_is_reached_by_keyboard(signed_in: Page, folder: Path) -> None:
    page = signed_in
    page.keyboard.press("Tab")
    names = list[str]()
    start(page, folder)
    wait_for_ask(page)
    for _ in range(30):
        page.keyboard.press("Tab")
        names.append(page.evaluate("() => document.activeElement.textContent"))
        if names[-1] == "Reject":
            break
    assert {"Start review", "Cancel run", "Approve", "Reject"} <= set(names)
    page.keyboard.press("Enter")
    expect(page.locator("#status")).to_have_text(re.compile("^Completed"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_it_without_sideways_scrolling(signed_in: Page, dev: Dev, folder: Path, scheme: Any) -> None:
    page = signed_in
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": 360, "height": 740})
    start(page, folder)
    wait_for_ask(page)
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    page_colour, text_colour = page.evaluate(
        "() => [getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
    )
    brightness = [sum(int(n) for n in re.findall(r"\d+", colour)[:3]) for colour in (page_colour, text_colour)]
    assert (brightness[0] < brightness[1]) == (scheme == "dark")
    end(dev, page)


def test_the_page_is_small_and_brings_nothing_inline() -> None:
    files = sorted(CONSOLE.iterdir())
    assert [file.name for file in files] == ["app.css", "app.js", "index.html"]
    assert sum(len(file.read_text().splitlines()) for file in files) <= 250
    page, code = (CONSOLE / "index.html").read_text(), (CONSOLE / "app.js").read_text()
    assert not re.search(r"<script(?![^>]*src=)|<style|\son\w+=|style=|https?://", page)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|localStorage", code)
