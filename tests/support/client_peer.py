"""A client machine with its socket in the test's hands."""

import json
from typing import Any

from towline.protocol.client.actions import Action, CloseSocket, Connect, Received, SendText
from towline.protocol.client.machine import ClientMachine

HALF = 0.5


def event(seq: int) -> dict[str, Any]:
    return {"seq": seq, "ts": "2026-01-31T09:30:00.000Z", "type": "progress.noted", "actor": {}, "data": {}}


def events(run: str, *seqs: int, cursor: str | None = None) -> dict[str, Any]:
    cursor = cursor or f"{seqs[-1]}-7"
    return {"op": "events", "run": run, "events": [event(s) for s in seqs], "cursor": cursor, "replay": True}


class Peer:
    """A machine with its socket in the test's hands."""

    def __init__(self, *, random: float = HALF) -> None:
        self.machine = ClientMachine("tok", random=lambda: random)
        self.now_ms = 1_000
        self.news: list[Action] = []
        self.sent: list[dict[str, Any]] = []
        self.orders: list[Action] = []

    def drain(self) -> None:
        for action in self.machine.next_actions():
            if isinstance(action, SendText):
                self.sent.append(json.loads(action.text))
            elif isinstance(action, Connect | CloseSocket):
                self.orders.append(action)
            else:
                self.news.append(action)

    def receive(self, *frames: dict[str, Any]) -> None:
        for frame in frames:
            self.machine.receive_text(json.dumps(frame), self.now_ms)
        self.drain()

    def welcome(self) -> None:
        self.machine.receive_opened(self.now_ms)
        self.receive({"op": "welcome", "protocol": 1, "connection": "con_1", "heartbeat_ms": 25_000, "limits": {}})

    def close(self, code: int) -> None:
        self.machine.receive_closed(code, "", self.now_ms)
        self.drain()

    def wait(self) -> int:
        """Lets time pass until the deadline; how long that was."""
        deadline = self.machine.deadline()
        assert deadline is not None
        waited, self.now_ms = deadline - self.now_ms, deadline
        self.machine.receive_timeout(deadline)
        self.drain()
        return waited

    def subscribed(self, cursor: str, recovery: str = "resumed", **members: Any) -> None:
        asked = self.last("subscribe")
        self.receive(
            {"op": "subscribed", "id": asked["id"], "run": asked["run"], "recovery": recovery, "cursor": cursor}
            | members
        )

    def last(self, op: str) -> dict[str, Any]:
        return [frame for frame in self.sent if frame["op"] == op][-1]

    def count(self, op: str) -> int:
        return sum(frame["op"] == op for frame in self.sent)

    def seqs(self) -> list[int]:
        return [e.seq for n in self.news if isinstance(n, Received) for e in n.events]


def followed(after: str = "0", cursor: str | None = None) -> Peer:
    peer = Peer()
    peer.machine.follow("r", after)
    peer.drain()
    peer.welcome()
    peer.subscribed(cursor or after)
    return peer
