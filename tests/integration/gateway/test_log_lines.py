"""Whatever is sent, a log line is one line: nobody writes another one into the log."""

import logging
from urllib.parse import quote

import httpx
import pytest

from tests.support.gateway import RunningGateway, token

pytestmark = pytest.mark.store

FORGED = "x\r\n2026-12-01 ERROR towline forged\n\x1b[2Jforged\u2028forged"
CLIENTS = ("websockets.client", "httpx", "httpcore", "asyncio")
"""Who logs on the side of the test, not of the gateway."""


async def test_nobody_writes_a_line_of_their_own(gateway: RunningGateway, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    run = await gateway.start()
    text = quote(FORGED)
    foreign = gateway.as_("eve")
    async with httpx.AsyncClient(base_url=gateway.url) as http:
        for headers in ({}, foreign, {"Authorization": f"Bearer {token('eve')}broken"}):
            for path in (f"/v1/runs/{text}", f"/v1/runs/{run}?label={text}", f"/v1/{text}", f"/v1/runs/{run}/{text}"):
                await http.get(path, headers={**headers, "X-Request-Id": text})
            body = {"workflow": FORGED, "input": {FORGED: FORGED}, "id": FORGED}
            await http.post("/v1/runs", json=body, headers=headers)
            await http.post(f"/v1/runs/{run}/commands", json={"type": FORGED, "data": {}}, headers=headers)
            await http.post(f"/v1/queues/{text}/claims", json={"worker": FORGED}, headers=headers)
        worker = gateway.as_("w", roles=("worker",))
        await http.post("/v1/queues/q/claims", json={"worker": FORGED, "workflows": [FORGED]}, headers=worker)
    async with gateway.socket(token("eve")) as wire:
        await wire.send(op="subscribe", id=FORGED[:100], run=FORGED)
        await wire.until("problem")
        await wire.send(op="subscribe", id="s", run=run, after=FORGED)
        await wire.until("problem")
    async with gateway.socket(hello=False) as wire:
        await wire.send(op="hello", token=FORGED)
        assert await wire.closed() == 4501
    ours = [record for record in caplog.records if not record.name.startswith(CLIENTS)]
    assert any("denied" in record.getMessage() for record in ours)
    for record in ours:
        line = logging.Formatter("%(message)s").format(record)
        assert len(line.splitlines()) <= 1, line
        assert "\x1b" not in line
