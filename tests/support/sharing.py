"""Shares and tickets in one line each, for tests of who comes in by them."""

from typing import Any

from tests.support.gateway import RunningGateway

HOUR_MS = 3_600_000


async def share_of(gateway: RunningGateway, run: str, **body: Any) -> dict[str, Any]:
    answer = await gateway.http.post(f"/v1/runs/{run}/shares", json={"expires_in_ms": HOUR_MS, **body})
    assert answer.status_code == 201, answer.text
    shared: dict[str, Any] = answer.json()
    return shared


async def ticket_of(gateway: RunningGateway, headers: Any = None, **body: Any) -> str:
    answer = await gateway.http.post("/v1/tickets", json=body, headers=headers)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["ticket"])


def bearer(credential: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {credential}"}
