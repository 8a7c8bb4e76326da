"""A worker over HTTP, call by call: what a program in any language would send."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from tests.support.gateway import RunningGateway, token

PROPOSAL = {
    "intent": "Hand it in",
    "lineage": ["write"],
    "permissions": ["artifacts"],
    "blast_radius": "One artifact",
    "rollback": "It cannot be undone",
}


def data_of(type_: str, **data: Any) -> dict[str, Any]:
    """One event to append."""
    return {"type": type_, "data": data}


NOTE = data_of("progress.noted", text="noted")
DONE = data_of("run.completed", summary="done")


class HttpWorker:
    """One worker with a credential of its own. The newest lease is shown with each call; commits are counted."""

    def __init__(self, http: httpx.AsyncClient, name: str) -> None:
        self.http = http
        self.name = name
        self.run = ""
        self.seen = ""
        self.lease: dict[str, Any] = {}
        self.number = 0

    async def claim(self, queue: str = "default", wait_ms: int = 5000, **more: Any) -> dict[str, Any]:
        """Takes the next run; the whole answer."""
        body = {"worker": self.name, "workflows": ["essay"], "wait_ms": wait_ms, **more}
        answer = await self.http.post(f"/v1/queues/{queue}/claims", json=body)
        assert answer.status_code == 200, answer.text
        return self.take(answer.json())

    def take(self, answer: dict[str, Any]) -> dict[str, Any]:
        """From now on works under the lease of `answer`."""
        self.run, self.seen, self.lease = answer["run"]["id"], answer["run"]["cursor"], answer["lease"]
        self.number = 0
        return answer

    async def call(self, method: str, path: str, **more: Any) -> httpx.Response:
        """A call about the run, under the lease."""
        headers = {"Towline-Lease": self.lease["token"], **more.pop("headers", {})}
        return await self.http.request(method, f"/v1/runs/{self.run}/{path}", headers=headers, **more)

    async def append(self, *events: dict[str, Any], **more: Any) -> httpx.Response:
        """The next commit, whatever is answered."""
        self.number += 1
        body = {"commit": self.number, "seen": self.seen, "events": events, **more}
        return await self.call("POST", "events", json=body)

    async def write(self, *events: dict[str, Any], **more: Any) -> dict[str, Any]:
        """The next commit, which succeeds."""
        answer = await self.append(*events, **more)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def read_inputs(self, wait_ms: int = 5000) -> list[dict[str, Any]]:
        """What came since; it is seen from now on."""
        answer = await self.call("GET", "inputs", params={"after": self.seen, "wait_ms": wait_ms})
        assert answer.status_code == 200, answer.text
        self.seen = answer.json()["cursor"]
        found: list[dict[str, Any]] = answer.json()["events"]
        return found


@asynccontextmanager
async def http_worker(gateway: RunningGateway, name: str = "w1", subject: str = "bot") -> AsyncIterator[HttpWorker]:
    """A worker of `gateway`."""
    headers = {"Authorization": f"Bearer {token(subject, roles=('worker',))}"}
    async with httpx.AsyncClient(base_url=gateway.url, headers=headers, timeout=40) as http:
        yield HttpWorker(http, name)


async def start_essay(gateway: RunningGateway, **body: Any) -> str:
    """Starts an essay as ana, whose workflow a worker must have offered; its id."""
    answer = await gateway.http.post("/v1/runs", json={"workflow": "essay", "input": {"topic": "ropes"}, **body})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def offer_essay(gateway: RunningGateway) -> None:
    """Lets a worker say that it has the workflow."""
    async with http_worker(gateway, "offers") as worker:
        answer = await worker.http.post(
            "/v1/queues/default/claims", json={"worker": worker.name, "workflows": ["essay"], "wait_ms": 0}
        )
        assert answer.status_code == 204, answer.text


async def events_of(gateway: RunningGateway, run: str) -> list[dict[str, Any]]:
    """The log as ana reads it."""
    answer = await gateway.http.get(f"/v1/runs/{run}/events")
    found: list[dict[str, Any]] = answer.json()["events"]
    return found
