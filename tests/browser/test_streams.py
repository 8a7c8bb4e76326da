"""Readers in a real browser that lose the network, go offline or sleep: each event once, in order, from the cursor.

The readers are what an application would write: they hold a cursor and nothing else, and look after their connection
when the browser says that it is back.
"""

from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser, Page

from tests.support.cable import Cable, cable
from tests.support.dev import Dev
from tests.support.http_hand import HttpHand, agent_http
from tests.support.sleeping_tab import SleepingTab, sleeping_tab
from tests.support.waiting import wait_until_sync

pytestmark = [pytest.mark.browser, pytest.mark.processes]

DROPS = 20
EVENT_SOURCE = """({ url, run, ticket }) => {
    const source = new EventSource(`${url}/v1/runs/${run}/events?after=0&ticket=${ticket}`);
    source.addEventListener('subscribed', ({ data }) => seen.places.push(JSON.parse(data).recovery));
    source.addEventListener('events', ({ data }) => seen.seqs.push(...JSON.parse(data).events.map((e) => e.seq)));
    source.addEventListener('end', () => { seen.ended = true; });
    source.onerror = () => { seen.closed ||= source.readyState === EventSource.CLOSED; };
}"""
FETCH = """({ url, run, token }) => {
    const headers = { Authorization: `Bearer ${token}`, Accept: 'text/event-stream' };
    let cursor = '0', connection = new AbortController();
    const take = (block) => {
        const data = block.split('\\n').find((line) => line.startsWith('data: '));
        if (!data) return;
        const frame = JSON.parse(data.slice(6));
        if (frame.op === 'subscribed') seen.places.push(frame.recovery);
        if (frame.op === 'events') seen.seqs.push(...frame.events.map((e) => e.seq));
        if (frame.op === 'end') seen.ended = true;
        cursor = frame.cursor ?? cursor;
    };
    const read = async () => {
        const mine = connection = new AbortController();
        const patience = setTimeout(() => mine.abort(), 700); // a connection that was kept may be dead as well
        const address = `${url}/v1/runs/${run}/events?after=${cursor}`;
        const { body } = await fetch(address, { headers, signal: mine.signal });
        clearTimeout(patience);
        let rest = '';
        for await (const text of body.pipeThrough(new TextDecoderStream())) {
            const blocks = (rest + text).split('\\n\\n');
            rest = blocks.pop();
            blocks.forEach(take);
        }
    };
    const go = () => read().catch(() => {}).then(() => seen.ended || setTimeout(go, 50));
    const again = () => connection.abort();
    addEventListener('online', again);
    document.addEventListener('resume', again);
    go();
}"""
SOCKET = """({ url, run, token }) => {
    let cursor = '0', socket, due;
    const open = () => {
        clearTimeout(due);
        const mine = socket = new WebSocket(`${url.replace('http', 'ws')}/v1/socket`, 'towline.v1');
        const say = (frame) => mine.send(JSON.stringify(frame));
        mine.onopen = () => say({ op: 'hello', token });
        mine.onmessage = ({ data }) => {
            if (mine !== socket) return;
            const frame = JSON.parse(data);
            if (frame.op === 'welcome') say({ op: 'subscribe', id: 's', run, after: cursor });
            if (frame.op === 'subscribed') seen.places.push(frame.recovery);
            if (frame.op === 'events') seen.seqs.push(...frame.events.map((e) => e.seq));
            if (frame.op === 'end') seen.ended = true;
            cursor = frame.cursor ?? cursor;
        };
        mine.onclose = () => { if (mine === socket && !seen.ended) due = setTimeout(open, 50); };
    };
    const again = () => { socket.close(4001); open(); };
    addEventListener('online', again);
    document.addEventListener('resume', again);
    open();
}"""
SEEN = "() => { window.seen = { seqs: [], places: [], ended: false, closed: false }; }"
READERS = {"fetch": FETCH, "socket": SOCKET}


@pytest.fixture(scope="module")
def http(dev: Dev) -> Iterator[httpx.Client]:
    with agent_http(dev) as client:
        yield client


@pytest.fixture
def line(dev: Dev) -> Iterator[Cable]:
    with cable(dev.url, retry_ms=10) as made:
        yield made


@pytest.fixture
def tab(browser: Browser, dev: Dev) -> Iterator[Page]:
    """A tab at the gateway's own address, without the console and its policy."""
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(f"{dev.url}/healthz")
        page.evaluate(SEEN)
        yield page


@pytest.fixture
def sleeper(browser: Browser, dev: Dev) -> Iterator[SleepingTab]:
    with sleeping_tab(browser, f"{dev.url}/healthz") as tab:
        tab.evaluate(SEEN)
        yield tab


def watch(page: Page | SleepingTab, reader: str, line: Cable, http: httpx.Client, run: str) -> None:
    ticket = http.post("/v1/tickets", json={"for": "events", "run": run}).json()["ticket"]
    token = http.headers["Authorization"].removeprefix("Bearer ")
    page.evaluate(reader, {"url": line.url, "run": run, "ticket": ticket, "token": token})


def seqs(page: Page | SleepingTab) -> list[int]:
    found: list[int] = page.evaluate("() => seen.seqs")
    return found


def wait_for(page: Page | SleepingTab, head: int) -> None:
    """Waits for the event `head`; up to it each came once, in order."""
    wait_until_sync(lambda: head in seqs(page), f"the event {head}")
    assert seqs(page) == list(range(1, head + 1))


def places(page: Page | SleepingTab) -> list[str]:
    found: list[str] = page.evaluate("() => seen.places")
    return found


def test_an_event_source_is_dropped_20_times(tab: Page, line: Cable, http: httpx.Client) -> None:
    writer = HttpHand(http)
    watch(tab, EVENT_SOURCE, line, http, writer.run)
    wait_for(tab, writer.head)
    for _ in range(DROPS):
        known = len(places(tab))
        assert line.cut() >= 1
        writer.note(3)
        wait_for(tab, writer.head)
        assert len(places(tab)) > known
    writer.end()
    wait_until_sync(lambda: tab.evaluate("() => seen.ended"), "the end")
    assert set(places(tab)) == {"resumed"}
    assert seqs(tab) == list(range(1, writer.head + 1))
    # What comes back after the end is told that there is nothing more, and stops.
    wait_until_sync(lambda: tab.evaluate("() => seen.closed"), "the source to be closed")


@pytest.mark.parametrize("reader", READERS)
def test_a_reader_goes_offline_and_comes_back(tab: Page, line: Cable, http: httpx.Client, reader: str) -> None:
    writer = HttpHand(http)
    watch(tab, READERS[reader], line, http, writer.run)
    wait_for(tab, writer.head)
    for _ in range(3):
        before = writer.head
        line.silence()
        tab.context.set_offline(True)
        writer.note(5)
        assert tab.evaluate("() => navigator.onLine") is False
        assert seqs(tab)[-1] == before
        line.mend()
        tab.context.set_offline(False)
        wait_for(tab, writer.head)
    writer.note()
    wait_for(tab, writer.head)
    assert set(places(tab)) == {"resumed"}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("network", ["stays", "goes", "cuts"])
def test_a_reader_sleeps_and_wakes(
    sleeper: SleepingTab, line: Cable, http: httpx.Client, reader: str, network: str
) -> None:
    writer = HttpHand(http)
    watch(sleeper, READERS[reader], line, http, writer.run)
    wait_for(sleeper, writer.head)
    for _ in range(2):
        before = writer.head
        sleeper.freeze()
        if network == "goes":
            line.silence()
        if network == "cuts":
            assert line.cut() >= 1
        writer.note(20)
        assert seqs(sleeper)[-1] == before
        line.mend()
        sleeper.thaw()
        wait_for(sleeper, writer.head)
    writer.note()
    wait_for(sleeper, writer.head)
    assert set(places(sleeper)) == {"resumed"}
