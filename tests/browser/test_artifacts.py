"""An artifact in a real browser: shown by `<img>` and fetched in ranges, with a ticket in place of a header."""

import struct
import zlib
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Page

from tests.support.dev import Dev
from tests.support.http_hand import agent_http

pytestmark = [pytest.mark.browser, pytest.mark.processes]

WIDTH, HEIGHT = 31, 17


def png() -> bytes:
    """A small grey picture."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, 8, 0, 0, 0, 0)
    rows = b"".join(b"\0" + bytes(WIDTH) for _ in range(HEIGHT))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@pytest.fixture(scope="module")
def worker(dev: Dev) -> Iterator[httpx.Client]:
    """An agent that hands in what the browser is to show."""
    with agent_http(dev) as client:
        yield client


def shown(page: Page, url: str) -> list[int]:
    """Width and height of the picture as the browser decoded it; zeros when it showed none."""
    size: list[int] = page.evaluate(
        """async (src) => {
            const img = Object.assign(new Image(), { src });
            await img.decode().catch(() => {});
            return [img.naturalWidth, img.naturalHeight];
        }""",
        url,
    )
    return size


def test_an_artifact_is_shown_and_fetched_in_ranges_by_ticket(signed_in: Page, dev: Dev, worker: httpx.Client) -> None:
    made = worker.post("/v1/runs", json={"workflow": "painter", "queue": None, "input": {}})
    assert made.status_code == 201, made.text
    run, lease = made.json()["run"]["id"], made.json()["lease"]["token"]
    content = png()
    for artifact, media_type, data in (
        ("art_plot", "image/png", content),
        ("art_fake", "image/png", b"<svg onload=alert(1)>"),
    ):
        kept = worker.put(
            f"/v1/runs/{run}/artifacts/{artifact}?name=plot.png",
            content=data,
            headers={"Content-Type": media_type, "Towline-Lease": lease},
        )
        assert kept.is_success, kept.text

    def link(artifact: str) -> str:
        body = {"for": "artifact", "run": run, "artifact": artifact}
        ticket = worker.post("/v1/tickets", json=body).json()["ticket"]
        return f"{dev.url}/v1/runs/{run}/artifacts/{artifact}?ticket={ticket}"

    page, plot = signed_in.context.new_page(), link("art_plot")
    page.goto(f"{dev.url}/healthz")  # a page of the same site without the console's own policy
    assert shown(page, plot) == [WIDTH, HEIGHT]
    assert shown(page, plot.partition("?")[0]) == [0, 0]
    assert shown(page, plot.replace("art_plot", "art_fake")) == [0, 0]  # a ticket is for one artifact
    assert shown(page, link("art_fake")) == [0, 0]
    parts = page.evaluate(
        """async ([url, size]) => {
            const parts = [];
            for (let at = 0; at < size; at += 10) {
                const range = `bytes=${at}-${Math.min(at + 9, size - 1)}`;
                const answer = await fetch(url, { headers: { Range: range } });
                parts.push([answer.status, ...new Uint8Array(await answer.arrayBuffer())]);
            }
            return parts;
        }""",
        [plot, len(content)],
    )
    assert {part[0] for part in parts} == {206}
    assert bytes(byte for part in parts for byte in part[1:]) == content
    page.close()
