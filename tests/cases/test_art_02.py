"""Links to artifacts never age and carry no right of their own: events hold an id and a hash, each download is judged.

The symptom: signed links were frozen into stored messages, where they expired, and leaked what they were signed with.
"""

import hashlib
import re
from typing import Any

import httpx
import pytest

from tests.support.gateway import AGENT, RunningGateway, token
from tests.support.transports import TRANSPORTS, read
from towline.protocol import event_data as d
from towline.protocol.client.connect import Client
from towline.protocol.codec import NewEntry

CONTENT = b"\x89PNG\r\n\x1a\n a picture"
SIGNED = re.compile(r"https?:|://|[?&](sig|signature|token|ticket|expires|X-Amz-\w+)=", re.IGNORECASE)


async def finished(gateway: RunningGateway) -> str:
    run = await gateway.start(grants={"user:bob": "collaborator"})
    hand = await gateway.hold(run)
    sha256 = await gateway.services.payloads.of(run).put(CONTENT)
    made = d.ArtifactCreated(
        artifact="art_1", name="plot.png", media_type="image/png", size=len(CONTENT), sha256=sha256
    )
    await hand.write(NewEntry("artifact.created", AGENT, made))
    await hand.complete()
    return run


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_an_event_names_an_artifact_and_holds_no_link(gateway: RunningGateway, transport: str) -> None:
    run = await finished(gateway)
    answer = await read(gateway, transport, run, "0")
    created: list[dict[str, Any]] = [event for event in answer.events if event["type"] == "artifact.created"]
    assert [set(event["data"]) for event in created] == [{"artifact", "name", "media_type", "size", "sha256"}]
    assert not any(SIGNED.search(str(event)) for event in answer.events)
    for event in created:
        got = await gateway.http.get(f"/v1/runs/{run}/artifacts/{event['data']['artifact']}")
        assert (got.status_code, hashlib.sha256(got.content).hexdigest()) == (200, event["data"]["sha256"])


async def test_a_link_that_was_copied_before_dies_with_the_right(gateway: RunningGateway) -> None:
    run = await finished(gateway)
    link, bob = f"/v1/runs/{run}/artifacts/art_1", gateway.as_("bob")
    assert (await gateway.http.get(link, headers=bob)).status_code == 200
    assert (await gateway.http.delete(f"/v1/runs/{run}/grants/user:bob")).is_success
    for more in ({}, {"Range": "bytes=0-3"}, {"If-None-Match": "*"}):
        refused = await gateway.http.get(link, headers={**bob, **more})
        assert (refused.status_code, refused.json()["code"]) == (404, "not_found")
    assert (await gateway.http.get(link)).content == CONTENT


async def test_a_link_with_a_ticket_dies_with_the_right_that_it_was_made_with(gateway: RunningGateway) -> None:
    """As an image of a page shows it: the link carries a ticket, and that is judged at each read."""
    run = await finished(gateway)
    body, bob = {"for": "artifact", "run": run, "artifact": "art_1"}, gateway.as_("bob")
    made = await gateway.http.post("/v1/tickets", json=body, headers=bob)
    assert made.status_code == 201, made.text
    copied = f"{gateway.url}/v1/runs/{run}/artifacts/art_1?ticket={made.json()['ticket']}"
    async with httpx.AsyncClient() as anyone:
        for more in ({}, {"Range": "bytes=0-3"}):
            assert (await anyone.get(copied, headers=more)).is_success
        assert (await gateway.http.delete(f"/v1/runs/{run}/grants/user:bob")).is_success
        for more in ({}, {"Range": "bytes=0-3"}):
            refused = await anyone.get(copied, headers=more)
            assert (refused.status_code, refused.json()["code"]) == (404, "not_found")
    again = await read(gateway, "pages", run, "0")
    assert not any(SIGNED.search(str(event)) for event in again.events), "no ticket is in the log"


async def test_the_client_downloads_what_an_old_run_made(gateway: RunningGateway) -> None:
    run = await finished(gateway)
    async with Client(gateway.url, token()) as client:
        events = [event async for event in client.events(run)]
        (made,) = [event.data for event in events if event.type == "artifact.created"]
        assert await client.artifact(run, made["artifact"]) == CONTENT
        assert [each["sha256"] for each in await client.artifacts(run)] == [made["sha256"]]
