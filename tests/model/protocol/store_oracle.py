"""The oracle of the store: what each script must answer and do, as plain dicts. Read it beside `store/lua`.

It is told every execution of a script in order (also those whose reply got lost), predicts the reply, and says at
the end what must stand in each log. It knows nothing of how the scripts do it. Time is `now`, moved by the walk.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

TERMINAL = ('"type":"run.completed"', '"type":"run.failed"', '"type":"run.cancelled"')


@dataclass
class ModelRun:
    """One run. `log` holds (tag, envelope after its spliced members, meta)."""

    nonce: str = ""
    log: list[tuple[str, str, str]] = field(default_factory=list)
    input_seq: int = 0
    unapplied: int = 0
    sealed: bool = False
    blocked: bool = False
    closing: bool = False
    held_back: str = ""
    thread: str = ""
    stopping: int = 0
    fence: tuple[int, str] = (0, "")
    holder: str = ""
    lease_until: int = 0
    lease_ms: int = 0
    crashes: int = 0
    claim_reply: list[Any] | None = None
    commit_no: int = 0
    commit_reply: list[Any] | None = None
    receipts: dict[str, Any] = field(default_factory=dict)
    side: dict[str, str] = field(default_factory=dict)
    rested_at: int = 0
    """What had been seen when the lease was given back to wait."""

    @property
    def head(self) -> list[str]:
        return [str(len(self.log)), self.log[-1][0]]

    def append(self, entries: Sequence[dict[str, Any]]) -> int:
        first = len(self.log) + 1
        self.log += [(e["t"], e["e"], e["m"]) for e in entries]
        return first


class Oracle:
    """See the module."""

    def __init__(self) -> None:
        self.now = 0
        self.runs: dict[str, ModelRun] = {}
        self.leases: dict[str, int] = {}
        self.timers: dict[str, int] = {}
        self.threads: dict[str, list[str]] = {}
        self.words: dict[str, int] = {}

    def check(self, name: str, request: dict[str, Any], reply: list[Any]) -> None:
        """Raises `AssertionError` when the script answered other than it must."""
        text = _text(reply)
        expected = getattr(self, name)(request, text)
        if expected is not None:
            assert text[: len(expected)] == expected, f"{name} {request}: expected {expected}, got {text}"
        if name != "renew_leases":
            key = f"{name}:{text[0]}"
            self.words[key] = self.words.get(key, 0) + 1

    # --- each script ---

    def create_run(self, q: dict[str, Any], _: list[Any]) -> list[Any]:
        if (run := self.runs.get(q["run"])) is not None:
            return ["OK", *run.head] if run.nonce == q["nonce"] else ["EXISTS", q["owner"], q["fingerprint"], *run.head]
        joins = bool(q["thread"]) and q["start_ms"] <= self.now
        if (self._last(q["thread"]) if joins else "") != q["behind"]:
            return ["CHANGED", "thread"]
        run = self.runs[q["run"]] = ModelRun(q["nonce"], thread=q["thread"])
        run.append(q["entries"])
        run.input_seq = 1
        if q["start_ms"] > self.now:
            run.held_back = "start_at"
            self.timers["start||" + q["run"]] = q["start_ms"]
        if joins:
            self._join(q["run"], run)
        self._wake(q["run"], run, q["claim_ms"])
        return ["OK", *run.head]

    def _last(self, thread: str) -> str:
        return (self.threads.get(thread) or [""])[-1]

    def _join(self, name: str, run: ModelRun) -> None:
        line = self.threads.setdefault(run.thread, [])
        if line:
            run.held_back = "thread"
        line.append(name)

    def start_run(self, q: dict[str, Any], _: list[Any]) -> list[Any]:
        due, run = self.timers.get("start||" + q["run"]), self.runs[q["run"]]
        if due is None:
            return ["DUPLICATE"]
        if due > self.now:
            return ["HELD", str(due - self.now)]
        if (last := self._last(run.thread)) != q["behind"]:
            return ["CHANGED", last]
        del self.timers["start||" + q["run"]]
        run.append(q["entries"])
        run.held_back = ""
        if run.thread:
            self._join(q["run"], run)
        self._wake(q["run"], run, q["claim_ms"])
        return ["OK", *run.head]

    def accept_command(self, q: dict[str, Any], _: list[Any]) -> list[Any]:
        run = self.runs[q["run"]]
        if (known := run.receipts.get(q["receipt"])) is not None:
            if known["nonce"] == q["nonce"]:
                return ["OK", *known["answer"]]
            return ["DUPLICATE", known["fingerprint"], q["record"], run.side.get("o|" + q["receipt"], "")]
        if run.sealed:
            return ["CLOSED", run.head[0]]
        for name, value in q["relies"]:
            if run.side.get(name, "") != value:
                return ["CHANGED", name]
        if q["counts"] and run.unapplied >= q["max_unapplied"]:
            return ["FULL", str(run.unapplied)]
        first = run.append(q["entries"])
        run.receipts[q["receipt"]] = {**q, "answer": [str(first), *run.head]}
        run.side.update(dict(q["side"]))
        if q["outcome"]:
            run.side["o|" + q["receipt"]] = q["outcome"]
        run.unapplied += q["counts"]
        if q["deadline_ms"] >= 0 and (not run.stopping or q["deadline_ms"] < run.stopping):
            run.stopping = self.timers["cancel||" + q["run"]] = q["deadline_ms"]
        if q["input_index"] >= 0:
            run.input_seq = first + q["input_index"]
            self._wake(q["run"], run, q["claim_ms"])
        return ["OK", str(first), *run.head, str(self.now)]

    def _wake(self, name: str, run: ModelRun, claim_ms: int) -> None:
        is_held = self.now < run.lease_until <= self.now + max(claim_ms, run.lease_ms)
        if not is_held and not run.blocked and not run.held_back:
            self.leases[name] = self.now + claim_ms

    def claim_run(self, q: dict[str, Any], _: list[Any]) -> list[Any]:
        run = self.runs.get(q["run"])
        if run is None:
            return ["NORUN"]
        if run.fence[1] == q["nonce"] and run.claim_reply is not None:
            return run.claim_reply
        if run.sealed:
            return ["CLOSED"]
        if run.lease_until > self.now + q["ttl_ms"]:
            run.lease_until = self.leases[q["run"]] = self.now + q["ttl_ms"]
        if not q["closing"]:
            if run.lease_until > self.now:
                return ["HELD", str(run.lease_until - self.now)]
            if run.blocked or run.closing or q["run"] not in self.leases:
                return ["PARKED"]
        lapsed = run.holder if run.lease_until else ""
        run.crashes += bool(run.lease_until) and not q["closing"]
        run.fence = (run.fence[0] + 1, q["nonce"])
        run.holder, run.commit_no, run.commit_reply = q["holder"], 0, None
        run.lease_until = self.leases[q["run"]] = self.now + q["ttl_ms"]
        run.lease_ms = q["ttl_ms"]
        run.closing = run.closing or q["closing"]
        word = "POISON" if run.crashes >= q["poison_at"] and not q["closing"] else "OK"
        run.claim_reply = [
            word, str(run.fence[0]), *run.head, str(run.input_seq), str(run.crashes), lapsed, str(run.lease_until),
            str(self.now), str(run.stopping),
        ]  # fmt: skip
        return run.claim_reply

    def renew_leases(self, q: dict[str, Any], _: list[Any]) -> list[Any]:
        answers: list[Any] = [str(self.now)]
        for lease in q["leases"]:
            run = self.runs[lease["run"]]
            if run.sealed:
                answers.append(["CLOSED"])
            elif run.fence != (lease["epoch"], lease["nonce"]) or not run.lease_until:
                answers.append(["FENCED"])
            else:
                run.lease_until = self.leases[lease["run"]] = self.now + q["ttl_ms"]
                answers.append(["OK", str(run.input_seq), str(run.stopping)])
        return answers

    def _fence(self, run: ModelRun, q: dict[str, Any]) -> list[Any] | None:
        is_same = run.fence == (q["epoch"], q["nonce"])
        if is_same and run.commit_no == q["commit"] and run.commit_reply is not None:
            return run.commit_reply
        if run.sealed:
            return ["CLOSED"]
        if not is_same or not run.lease_until:
            return ["FENCED"]
        seq, tag = (int(part) for part in q["seen"].split("-"))
        if run.commit_no + 1 != q["commit"] or seq > len(run.log) or int(run.log[seq - 1][0]) != tag:
            return ["DIVERGED"]
        return None

    def _write(self, run: ModelRun, q: dict[str, Any]) -> list[Any]:
        first = run.append(q["entries"])
        self.timers.update(dict(q["arm"]))
        for member in q["disarm"]:
            self.timers.pop(member, None)
        run.side.update(dict(q["side"]))
        run.unapplied -= q["applied"]
        if q["recorded"]:
            run.crashes = 0
        run.commit_no = q["commit"]
        run.commit_reply = ["OK", str(first), *run.head, str(self.now), str(run.input_seq)]
        return run.commit_reply

    def commit(self, q: dict[str, Any], _: list[Any]) -> list[Any]:
        run = self.runs[q["run"]]
        return self._fence(run, q) or self._write(run, q)

    def _unseen(self, run: ModelRun, q: dict[str, Any]) -> bool:
        return run.input_seq > int(q["seen"].split("-")[0])

    def release_run(self, q: dict[str, Any], _: list[Any]) -> list[Any]:
        run = self.runs[q["run"]]
        if (refused := self._fence(run, q)) is not None:
            return refused
        if q["to"] == "waiting" and self._unseen(run, q):
            return ["UNSEEN", str(run.input_seq)]
        reply = self._write(run, q)
        run.lease_until = 0
        self.leases.pop(q["run"], None)
        run.rested_at = int(q["seen"].split("-")[0])
        if q["to"] == "blocked":
            run.blocked, run.crashes = True, 0
        elif q["to"] == "hand_over":
            self.leases[q["run"]] = self.now + q["claim_ms"]
        return reply

    def close_run(self, q: dict[str, Any], _: list[Any]) -> list[Any]:
        run = self.runs[q["run"]]
        if (refused := self._fence(run, q)) is not None:
            return refused
        if q["forced"]:
            if q["prepared_at"] != len(run.log):
                return ["CHANGED", run.head[0]]
        elif self._unseen(run, q):
            return ["UNSEEN", str(run.input_seq)]
        line = self.threads.get(run.thread, [])
        heir = line[1] if line[0:1] == [q["run"]] and line[1:] else ""
        if heir != q["heir"]:
            return ["CHANGED", "thread", heir]
        reply = self._write(run, q)
        run.sealed, run.closing, run.blocked, run.stopping, run.lease_until = True, False, False, 0, 0
        self.leases.pop(q["run"], None)
        run.held_back = ""
        for kind in ("cancel", "start"):
            self.timers.pop(f"{kind}||{q['run']}", None)
        if q["run"] in line:
            line.remove(q["run"])
        if heir:
            self.runs[heir].held_back = ""
            self._wake(heir, self.runs[heir], q["claim_ms"])
        return reply

    def waits_in_thread(self, name: str) -> bool:
        """Whether another run is before it, whose end lets it go."""
        return name in self.threads.get(self.runs[name].thread, [])[1:]

    def fire_timer(self, q: dict[str, Any], _: list[Any]) -> list[Any]:
        due = self.timers.get(q["member"])
        if due is None:
            return ["DUPLICATE"]
        if due > self.now:
            return ["HELD", str(due - self.now)]
        del self.timers[q["member"]]
        run = self.runs[q["run"]]
        if run.sealed:
            return ["CLOSED"]
        run.input_seq = run.append(q["entries"])
        self._wake(q["run"], run, q["claim_ms"])
        return ["OK", *run.head]

    def rehint_run(self, q: dict[str, Any], reply: list[Any]) -> list[Any]:
        by, run = self.leases.get(q["run"]), self.runs[q["run"]]
        if by is None:
            return ["PARKED"]
        if by > self.now:
            latest = self.now + max(q["claim_ms"], run.lease_ms)
            if by > latest:
                self.leases[q["run"]] = by = latest
                run.lease_until = min(run.lease_until, latest)
            return ["HELD", str(by - self.now)]
        if run.sealed:
            del self.leases[q["run"]]
            return ["CLOSED"]
        if run.closing and run.stopping:
            self.leases[q["run"]] = self.now + q["claim_ms"]
            return ["CHANGED", "closing"]
        run.closing = False
        if run.blocked or run.held_back:
            run.lease_until = 0
            del self.leases[q["run"]]
            return ["PARKED"]
        self.leases[q["run"]] = self.now + q["claim_ms"]
        # Whether the last hint was delivered is the stream's to know.
        return ["DUPLICATE"] if reply[0] == "DUPLICATE" else ["OK"]

    def sweep_partition(self, _: dict[str, Any], __: list[Any]) -> None:
        return None


def _text(reply: Any) -> Any:
    if isinstance(reply, list):
        return [_text(item) for item in reply]
    return reply.decode() if isinstance(reply, bytes) else reply
