"""A stream passes proxies unheld: not buffered, not compressed, first bytes at once, comments that take no number.

The symptom: events came when the response ended, since a proxy or a compressor waited for a full block.
"""

from tests.support.gateway import RunningGateway
from tests.support.transports import sse_blocks


async def test_the_headers_and_the_first_bytes(gateway: RunningGateway) -> None:
    run = await gateway.start()
    headers = {"Accept": "text/event-stream", "Accept-Encoding": "gzip, br, deflate, zstd"}
    async with gateway.http.stream("GET", f"/v1/runs/{run}/events", params={"after": "0"}, headers=headers) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["x-accel-buffering"] == "no"
        assert "no-store" in response.headers["cache-control"]
        assert "no-transform" in response.headers["cache-control"]
        assert "content-encoding" not in response.headers
        blocks = sse_blocks(response)
        seen = [(await anext(blocks)).get("event") for _ in range(3)]
    assert seen == ["subscribed", "events", "live"]
