"""Links to artifacts never age and carry no right of their own: events hold an id and a hash, each download is judged.

The symptom: signed links were frozen into stored messages, where they expired, and leaked what they were signed with.
"""

import hashlib
import re
from typing import Any

import pytest

from tests.support.gateway import AGENT, RunningGateway
from tests.support.transports import TRANSPORTS, read
from towline.protocol import event_data as d
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
