"""Characters that some readers take for line ends do not cut an event in two, and arrive as they were.

The symptom: U+2028, U+0085, vertical tab and the like inside a JSON string split the data line of a stream.
"""

import json

import pytest

from tests.support.gateway import RunningGateway
from tests.support.transports import TRANSPORTS, read

NASTY = [
    "\u2028",
    "\u2029",
    "\u0085",
    "\x0b",
    "\x0c",
    "\r",
    "\n",
    "\r\n",
    "\x1c",
    "\x00",
    "\ufeff",
    "\u202e",
    "😀",
    "e\u0301",
]
TEXT = "begin" + "".join(f"<{c}>" for c in NASTY) + "end"


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_every_character_arrives(gateway: RunningGateway, transport: str) -> None:
    run = await gateway.start()
    await (await gateway.hold(run)).note(TEXT)
    answer = await read(gateway, transport, run, "2")
    assert [event["data"]["text"] for event in answer.events] == [f"{TEXT} 0"]


async def test_a_stream_is_safe_for_readers_that_split_at_every_line_end_of_unicode(gateway: RunningGateway) -> None:
    run = await gateway.start()
    hand = await gateway.hold(run)
    await hand.note(TEXT)
    await hand.complete()
    headers = {"Accept": "text/event-stream"}
    response = await gateway.http.get(f"/v1/runs/{run}/events", params={"after": "0"}, headers=headers)
    data = [line.removeprefix("data:") for line in response.text.splitlines() if line.startswith("data:")]
    frames = [json.loads(each) for each in data]
    assert [event["seq"] for frame in frames if frame["op"] == "events" for event in frame["events"]] == [1, 2, 3, 4]
    assert not [
        line
        for line in response.text.splitlines()
        if line and line.split(":")[0] not in ("id", "event", "data", "retry", "")
    ]
