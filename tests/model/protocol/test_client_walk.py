"""Random walks: the client machine against a server that breaks off, repeats, skips, sheds and rolls back.

The oracle is the log itself: after the faults stop, what the client holds of each run is the log, every event
once and in order, or begins where a `Placed` said that it does. Each walk counts the faults it met, so that a
walk without any cannot pass for a proof.
"""

import json
import random
from collections import Counter
from typing import Any

import pytest

from towline.protocol.client.actions import (
    Answered,
    CloseSocket,
    Connect,
    Dropped,
    Ended,
    Live,
    Placed,
    Received,
    SendText,
)
from towline.protocol.client.commands import Send
from towline.protocol.client.machine import ClientMachine
from towline.protocol.values import JsonObject

RUNS = ("a", "b", "c")
RETRY_CODES = (1000, 1001, 1006, 1011, 4000, 4001, 4008, 4010, 4013, 4029)


class Log:
    """One run: entries with tags, appended to until it is closed; may lose its tail once."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.tags: list[int] = []
        self.is_closed = False

    def append(self) -> None:
        self.tags.append(self.dice.getrandbits(32))

    def cursor(self, seq: int) -> str:
        return "0" if seq == 0 else f"{seq}-{self.tags[seq - 1]}"

    def event(self, seq: int) -> JsonObject:
        kind = "run.completed" if self.is_closed and seq == len(self.tags) else "progress.noted"
        return {"seq": seq, "ts": "t", "type": kind, "data": {"tag": self.tags[seq - 1]}}


class Server:
    """Speaks the contract about its logs to one socket at a time, and breaks it when the dice say so."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.logs = {run: Log(dice) for run in RUNS}
        self.places: dict[str, int] = {}
        self.is_live: dict[str, bool] = {}
        self.outbox: list[JsonObject] = []
        self.accepted: dict[str, int] = {}
        self.met = Counter[str]()
        self.is_honest = False

    def fault(self, name: str, chance: float) -> bool:
        if self.is_honest or self.dice.random() >= chance:
            return False
        self.met[name] += 1
        return True

    def open(self) -> None:
        self.places.clear()
        self.outbox.clear()

    def receive(self, frame: JsonObject) -> None:
        op, run = frame["op"], frame.get("run", "")
        if op == "hello":
            self.outbox.append({"op": "welcome", "heartbeat_ms": 25_000})
        elif op == "ping":
            self.outbox.append({"op": "pong"})
        elif op == "unsubscribe":
            self.places.pop(run, None)
            self.outbox.append({"op": "unsubscribed", "run": run, "code": "requested"})
        elif op == "subscribe":
            self.subscribe(frame, run)
        elif op == "command":
            duplicate = frame["command_id"] in self.accepted
            self.accepted.setdefault(frame["command_id"], 0)
            self.accepted[frame["command_id"]] += not duplicate
            if not self.fault("receipt lost", 0.3):
                self.outbox.append(
                    {"op": "receipt", "id": frame["id"], "command_id": frame["command_id"], "status": "applied"}
                )
            else:
                self.outbox.append({"op": "drop"})

    def subscribe(self, frame: JsonObject, run: str) -> None:
        if self.fault("unavailable", 0.1):
            self.outbox.append({"op": "problem", "id": frame["id"], "run": run, "problem": {"code": "unavailable"}})
            return
        if run in self.places:
            self.outbox.append({"op": "unsubscribed", "run": run, "code": "replaced"})
        log, (seq, _, tag) = self.logs[run], frame["after"].partition("-")
        place, members = int(seq), dict[str, Any]()
        if place > len(log.tags):
            place, members = 0, {"recovery": "reset", "recovery_code": "ahead"}
        elif place and log.tags[place - 1] != int(tag):
            place, members = 0, {"recovery": "reset", "recovery_code": "diverged"}
        elif "limit" in frame and len(log.tags) - place > frame["limit"]:
            base = len(log.tags) - frame["limit"]
            members = {"recovery": "snapshot", "recovery_code": "limited", "skipped": [place + 1, base]}
            place = base
        self.places[run], self.is_live[run] = place, False
        self.outbox.append(
            {"op": "subscribed", "id": frame["id"], "run": run, "recovery": "resumed", "cursor": log.cursor(place)}
            | members
        )

    def step(self) -> None:
        """Serves one subscription a little further, well or badly."""
        if not self.places:
            return
        run = self.dice.choice(sorted(self.places))
        log, place = self.logs[run], self.places[run]
        if self.fault("shed", 0.02):
            del self.places[run]
            self.outbox.append({"op": "unsubscribed", "run": run, "code": "shed", "retry_ms": 40})
        elif place < len(log.tags):
            last = self.dice.randint(place + 1, min(place + 4, len(log.tags)))
            first = place + 1
            if self.fault("repeat", 0.1):
                first = max(1, first - 2)
            if self.fault("skip", 0.1):
                first = min(first + 1, last)
            self.places[run] = last
            if self.fault("swallow", 0.05):
                return
            seqs = range(first, last + 1)
            self.outbox.append(
                {"op": "events", "run": run, "events": [log.event(s) for s in seqs], "cursor": log.cursor(last)}
            )
        elif not self.is_live[run]:
            self.is_live[run] = True
            self.outbox.append({"op": "live", "run": run, "cursor": log.cursor(place)})
        elif log.is_closed:
            del self.places[run]
            self.outbox.append({"op": "end", "run": run, "cursor": log.cursor(place), "status": "completed"})
        else:
            self.outbox.append({"op": "heartbeat", "heads": {run: len(log.tags)}})

    def lose_tail(self) -> None:
        """The store came back older, and went on differently."""
        log = self.logs[self.dice.choice(RUNS)]
        if not self.is_honest and not log.is_closed and len(log.tags) > 3:
            self.met["lost tail"] += 1
            del log.tags[len(log.tags) - self.dice.randint(1, 3) :]
            if self.dice.random() < 0.5:
                log.append()
            self.outbox.append({"op": "drop"})  # a gateway notices by its own cursor check and starts afresh


class Held:
    """What an application keeps of one run, by the rules of the contract."""

    def __init__(self) -> None:
        self.base = 0
        self.tags: list[int] = []
        self.has_ended = False

    def receive(self, news: object) -> None:
        if isinstance(news, Placed):
            if news.recovery == "reset":
                self.base, self.tags = int(news.cursor.partition("-")[0]), []
            elif news.skipped is not None:
                assert news.skipped[0] == self.base + len(self.tags) + 1
                self.base, self.tags = news.skipped[1], []
        elif isinstance(news, Received):
            for event in news.events:
                assert not self.has_ended
                assert event.seq == self.base + len(self.tags) + 1
                self.tags.append(event.data["tag"])
        elif isinstance(news, Ended):
            self.has_ended = True


def walk(seed: int) -> Counter[str]:
    dice = random.Random(seed)
    server, held, now_ms = Server(dice), {run: Held() for run in RUNS}, 0
    machine = ClientMachine("tok", random=dice.random)
    for run in RUNS:
        machine.follow(run, limit=5 if run == "c" else None)
    sent, answered, is_open, on_hold = set[str](), set[str](), False, set[str]()

    def carry_out() -> None:
        nonlocal is_open
        for action in machine.next_actions():
            match action:
                case Connect():
                    if server.fault("no socket", 0.1):
                        machine.receive_closed(1006, "", now_ms)
                    else:
                        is_open = True
                        server.open()
                        machine.receive_opened(now_ms)
                case SendText(text):
                    if is_open:
                        server.receive(json.loads(text))
                case CloseSocket():
                    server.met["closed by client"] += 1
                    is_open = False
                    machine.receive_closed(1006, "", now_ms)
                case Answered(command_id=command_id, is_final=True):
                    assert command_id not in answered
                    answered.add(command_id)
                case Placed(run=run) | Received(run=run) | Live(run=run) | Ended(run=run):
                    held[run].receive(action)
                case Dropped():
                    raise AssertionError(action)
                case _:
                    pass

    def break_off() -> None:
        nonlocal is_open
        is_open = False
        machine.receive_closed(dice.choice(RETRY_CODES), "", now_ms)

    for turn in range(4_000):
        server.is_honest = turn >= 1_200
        if turn == 800:  # while faults go on: the ending, too, may get lost
            for log in server.logs.values():
                log.append()
                log.is_closed = True
        if turn == 1_200:
            for run in on_hold:
                machine.release(run)
        carry_out()
        if all(h.has_ended for h in held.values()) and answered == sent:
            break
        now_ms += dice.randint(1, 30)
        if not server.is_honest:
            if dice.random() < 0.3 and turn < 800:
                server.logs[dice.choice(RUNS)].append()
            if dice.random() < 0.01:
                server.lose_tail()
            if dice.random() < 0.02:
                command_id = f"k{len(sent)}"
                sent.add(command_id)
                machine.command(Send(run="a", type="cancel", data={}, command_id=command_id))
            if dice.random() < 0.01 and "b" not in on_hold:
                on_hold.add("b")
                machine.hold("b")
            elif dice.random() < 0.05 and on_hold:
                on_hold.clear()
                machine.release("b")
        if is_open and server.fault("broke off", 0.02):
            break_off()
        elif is_open and server.outbox:
            frame = server.outbox.pop(0)
            if frame["op"] == "drop":
                break_off()
            else:
                machine.receive_text(json.dumps(frame), now_ms)
        elif is_open:
            server.step()
        if not is_open or not server.outbox:
            deadline = machine.deadline()
            if deadline is not None and (not is_open or deadline <= now_ms):
                now_ms = max(now_ms, deadline)
                machine.receive_timeout(now_ms)

    for run, kept in held.items():
        assert kept.has_ended, f"{run} did not end"
        assert kept.tags == server.logs[run].tags[kept.base :]
        assert run == "c" or kept.base == 0
    assert answered == sent
    assert all(times == 1 for times in server.accepted.values())
    return server.met


@pytest.mark.parametrize("first_seed", range(0, 200, 20))
def test_what_is_held_is_the_log(first_seed: int) -> None:
    met = Counter[str]()
    for seed in range(first_seed, first_seed + 20):
        try:
            met += walk(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    faults = {"broke off", "skip", "swallow", "repeat", "shed", "lost tail", "unavailable", "receipt lost", "no socket"}
    assert faults <= set(met), f"only met {met}"
