"""The session machine: who may say what when, and with which code it ends."""

import random
from typing import Any

import msgspec
import pytest

from towline.protocol import frames as f
from towline.protocol import session as s
from towline.protocol.tokens import Credential

LIFE_MS = 600_000


class Peer:
    """A session under a hand-moved clock. A token is the subject and its life: `ana:600000`."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.session = s.Session("con_1", now_ms=self.now_ms)
        self.done: list[s.Action] = []
        self.is_judging = True

    def judge(self, asked: s.Judge) -> None:
        """Feeds the verdict. A ticket is written as a token, with `t-` in front."""
        text = asked.token if asked.token is not None else (asked.ticket or "").removeprefix("t-")
        subject, _, life = text.partition(":")
        if not subject or not life.isdigit():
            self.session.receive_refusal("no")
        else:
            credential = Credential(subject, self.now_ms + int(life), ("user",))
            self.session.receive_credential(credential, now_ms=self.now_ms)

    def upgrade(
        self, *, token: str | None = None, origin: bool = True, offered: tuple[str, ...] = ("towline.v1",)
    ) -> None:
        self.session.receive_upgrade(subprotocols=offered, is_origin_allowed=origin, token=token, now_ms=self.now_ms)
        self.take()

    def say(self, **frame: Any) -> list[s.Action]:
        return self.text(msgspec.json.encode(frame).decode())

    def text(self, text: str) -> list[s.Action]:
        self.session.receive_text(text, now_ms=self.now_ms)
        return self.take()

    def wait(self, ms: int) -> list[s.Action]:
        self.now_ms += ms
        self.session.advance(self.now_ms)
        return self.take()

    def take(self) -> list[s.Action]:
        """What the machine says, its questions about credentials answered at once."""
        actions: list[s.Action] = []
        while found := self.session.next_actions():
            for action in found:
                if isinstance(action, s.Judge) and self.is_judging:
                    self.judge(action)
                else:
                    actions.append(action)
        self.done += actions
        return actions

    def ops(self) -> list[str]:
        return [type(a.frame).__name__ for a in self.done if isinstance(a, s.Send)]

    def close_code(self) -> int | None:
        codes = [a.code for a in self.done if isinstance(a, s.Close)]
        assert len(codes) <= 1
        return codes[0] if codes else None


def welcomed(token: str = f"ana:{LIFE_MS}") -> Peer:
    peer = Peer()
    peer.upgrade()
    peer.say(op="hello", token=token)
    assert peer.ops() == ["Welcome"]
    return peer


def test_hello_is_welcomed() -> None:
    peer = welcomed()
    assert peer.session.credential is not None
    assert peer.session.credential.subject == "ana"
    assert any(isinstance(a, s.Admit) for a in peer.done)


def test_a_ticket_opens_like_a_token() -> None:
    peer = Peer()
    peer.upgrade()
    peer.say(op="hello", ticket="t-ana:60000")
    assert peer.ops() == ["Welcome"]


def test_what_comes_before_the_verdict_is_done_after_it() -> None:
    peer = Peer()
    peer.is_judging = False
    peer.upgrade()
    (asked,) = peer.say(op="hello", token=f"ana:{LIFE_MS}")
    assert isinstance(asked, s.Judge)
    assert asked == s.Judge(f"ana:{LIFE_MS}")
    assert peer.say(op="ping", id="p") == []
    assert peer.say(op="auth", id="a", token="bob:60000") == []
    assert peer.say(op="ping", id="late") == []
    peer.judge(asked)
    (*_, renewal) = peer.take()
    assert peer.ops() == ["Welcome", "Pong"]
    assert isinstance(renewal, s.Judge)
    assert renewal == s.Judge("bob:60000")
    peer.judge(renewal)
    peer.take()
    assert peer.close_code() == 4501


def test_a_verdict_that_comes_too_late_opens_nothing() -> None:
    peer = Peer()
    peer.is_judging = False
    peer.upgrade()
    (asked,) = peer.say(op="hello", token=f"ana:{LIFE_MS}")
    peer.wait(10_000)
    assert isinstance(asked, s.Judge)
    peer.judge(asked)
    assert peer.take() == []
    assert (peer.close_code(), peer.ops()) == (4501, ["Bye"])


def test_a_credential_in_the_upgrade_needs_no_hello() -> None:
    peer = Peer()
    peer.upgrade(token="ana:60000")
    assert peer.ops() == ["Welcome"]
    assert peer.say(op="hello", client="cli") == []
    peer.say(op="hello")
    assert peer.ops() == ["Welcome", "ProblemFrame"]


@pytest.mark.parametrize(
    ("upgrade", "code"),
    [
        ({"offered": ()}, 4506),
        ({"offered": ("chat", "towline.v2")}, 4506),
        ({"origin": False}, 4503),
        ({"origin": False, "token": "ana:60000"}, 4503),
        ({"token": ""}, 4501),
        ({"token": "forged"}, 4501),
    ],
)
def test_an_upgrade_that_is_refused(upgrade: dict[str, Any], code: int) -> None:
    peer = Peer()
    peer.upgrade(**upgrade)
    assert peer.close_code() == code
    assert "Welcome" not in peer.ops()
    assert ("Bye" in peer.ops()) == (code != 4506)


@pytest.mark.parametrize(
    ("first", "code"),
    [
        ({"op": "hello"}, 4501),
        ({"op": "hello", "token": "forged"}, 4501),
        ({"op": "hello", "ticket": "tik"}, 4501),
        ({"op": "hello", "ticket": "t-ana:60000", "token": "ana:60000"}, 4501),
        ({"op": "hello", "token": 5}, 4500),
        ({"op": "ping"}, 4500),
        ({"op": "subscribe", "id": "s", "run": "r"}, 4500),
        ({"op": "auth", "id": "a", "token": "ana:60000"}, 4500),
        ({"op": "nope"}, 4500),
        ({"no": "op"}, 4500),
    ],
)
def test_a_first_frame_that_is_refused(first: dict[str, Any], code: int) -> None:
    peer = Peer()
    peer.upgrade()
    peer.say(**first)
    assert peer.close_code() == code
    assert isinstance(peer.done[-2], s.Send)
    assert isinstance(peer.done[-2].frame, f.Bye)
    assert peer.done[-2].frame.code == code


def test_silence_ends_after_ten_seconds() -> None:
    peer = Peer()
    peer.upgrade()
    assert peer.session.deadline_ms() == peer.now_ms + 10_000
    assert peer.wait(9_999) == []
    peer.wait(1)
    assert peer.close_code() == 4501


@pytest.mark.parametrize("text", ["", "hi", "[]", "{", '{"op":5}'])
def test_what_is_no_frame_closes_later_too(text: str) -> None:
    peer = welcomed()
    peer.text(text)
    assert peer.close_code() == 4500


def test_a_binary_frame_closes() -> None:
    peer = welcomed()
    peer.session.receive_binary()
    peer.take()
    assert peer.close_code() == 4500


def test_a_wrong_member_is_a_problem_and_the_socket_lives() -> None:
    peer = welcomed()
    (answer,) = peer.say(op="subscribe", id="s7", run="r", limit=0)
    assert isinstance(answer, s.Send)
    assert isinstance(answer.frame, f.ProblemFrame)
    assert (answer.frame.id, answer.frame.run, answer.frame.problem["field"]) == ("s7", "r", "limit")
    assert answer.frame.problem["request_id"]
    assert peer.close_code() is None


def test_what_is_asked_is_performed_in_order() -> None:
    peer = welcomed()
    for frame in ({"op": "subscribe", "id": "1", "run": "r"}, {"op": "unsubscribe", "id": "2", "run": "r"}):
        peer.say(**frame)
    peer.say(op="command", id="3", run="r", type="cancel", command_id="k")
    peer.say(op="watch", id="4", feed="runs")
    performed = [a for a in peer.done if isinstance(a, s.Perform)]
    assert [a.frame.id for a in performed] == ["1", "2", "3", "4"]
    assert len({a.request_id for a in performed}) == 4
    assert peer.say(op="ping", id="p") == [s.Send(f.Pong("p"))]


@pytest.mark.parametrize(("life_ms", "warned_after_ms"), [(600_000, 540_000), (40_000, 20_000)])
def test_a_newer_credential_is_asked_for_and_taken(life_ms: int, warned_after_ms: int) -> None:
    peer = welcomed(f"ana:{life_ms}")
    assert peer.session.deadline_ms() == peer.now_ms + warned_after_ms
    assert peer.wait(warned_after_ms - 1) == []
    peer.wait(1)
    assert peer.ops()[-1] == "AuthRequired"
    peer.say(op="auth", id="a", token=f"ana:{life_ms}")
    assert peer.ops()[-1] == "Authenticated"
    peer.wait(warned_after_ms)
    assert peer.ops()[-1] == "AuthRequired"
    assert peer.close_code() is None


def test_the_end_of_a_credential_closes() -> None:
    peer = welcomed("ana:30000")
    peer.wait(29_999)
    assert peer.close_code() is None
    peer.wait(1)
    assert peer.close_code() == 4005


def test_a_frame_after_the_end_of_the_credential_is_not_performed() -> None:
    peer = welcomed("ana:30000")
    peer.now_ms += 30_000
    peer.say(op="command", id="c", run="r", type="cancel", command_id="k")
    assert peer.close_code() == 4005
    assert not any(isinstance(a, s.Perform) for a in peer.done)


@pytest.mark.parametrize("token", ["bob:60000", "forged"])
def test_another_subject_or_a_bad_credential_closes(token: str) -> None:
    peer = welcomed()
    peer.say(op="auth", id="a", token=token)
    assert peer.close_code() == 4501


def test_a_drain_says_when_to_come_back() -> None:
    peer = welcomed()
    peer.session.drain(1234)
    bye, close = peer.take()
    assert bye == s.Send(f.Bye(4000, "the server is going away", 1234))
    assert isinstance(close, s.Close)
    assert close.code == 4000


@pytest.mark.parametrize("seed", range(100))
def test_nothing_follows_a_close(seed: int) -> None:
    dice = random.Random(seed)
    peer = Peer()
    peer.upgrade()
    for _ in range(30):
        match dice.randrange(6):
            case 0:
                peer.say(op="hello", token=dice.choice(["ana:50000", "bad"]))
            case 1:
                peer.say(op="auth", id="a", token=dice.choice(["ana:50000", "bob:1"]))
            case 2:
                peer.say(op="subscribe", id="s", run=dice.choice(["r", "{"]))
            case 3:
                peer.wait(dice.choice([10, 11_000, 60_000]))
            case 4:
                peer.text(dice.choice(["", "{}", '{"op":"x"}']))
            case _:
                peer.say(op="ping")
    closes = [i for i, a in enumerate(peer.done) if isinstance(a, s.Close)]
    assert closes in ([], [len(peer.done) - 1])
    assert peer.session.is_closed == bool(closes)
    if closes:
        assert peer.session.deadline_ms() is None
