"""Somebody's agent, for tests without an event loop: holds a run of its own over HTTP and writes to it."""

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from tests.support.dev import Dev
from towline.protocol import tokens


class HttpHand:
    """One run, and its lease. `head` is the seq of what was written last."""

    def __init__(self, http: httpx.Client, **options: Any) -> None:
        made = http.post("/v1/runs", json={"workflow": "walk", "queue": None, "input": {}, **options})
        assert made.status_code == 201, made.text
        self._http = http
        self._cursor = made.json()["run"]["cursor"]
        self._lease = made.json()["lease"]["token"]
        self._commits = itertools.count(1)
        self.run = str(made.json()["run"]["id"])
        self.head = int(made.json()["run"]["last_seq"])

    def note(self, count: int = 1) -> int:
        """Appends so many notes; the log's head."""
        return self.write(*(("progress.noted", {"text": f"step {n}"}) for n in range(count)))

    def end(self) -> int:
        """Completes the run; the log's head."""
        return self.write(("run.completed", {"summary": "", "claims": [], "verified": None}))

    def write(self, *events: tuple[str, dict[str, Any]], **more: Any) -> int:
        """Appends events by type and data; the log's head."""
        body = {
            "events": [{"type": type_, "data": data} for type_, data in events],
            "commit": next(self._commits),
            "seen": self._cursor,
            **more,
        }
        answer = self._http.post(f"/v1/runs/{self.run}/events", json=body, headers={"Towline-Lease": self._lease})
        assert answer.is_success, answer.text
        self.head = int(answer.json()["last_seq"])
        return self.head

    def put(self, artifact: str, name: str, content: bytes, media_type: str) -> None:
        """Hands in an artifact."""
        answer = self._http.put(
            f"/v1/runs/{self.run}/artifacts/{artifact}",
            params={"name": name},
            content=content,
            headers={"Content-Type": media_type, "Towline-Lease": self._lease},
        )
        assert answer.is_success, answer.text


@contextlib.contextmanager
def agent_http(dev: Dev) -> Iterator[httpx.Client]:
    """A client at `dev` with the credential of an agent."""
    secret = (Path(dev.data) / "secret").read_text().strip().encode()
    token = tokens.mint(secret, subject="agent", roles=("user", "worker"), ttl_s=600)
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.Client(base_url=dev.url, headers=headers, trust_env=False) as client:
        yield client
