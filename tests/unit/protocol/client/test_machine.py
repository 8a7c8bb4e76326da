"""The link of a client: coming back, staying away, credentials, silence, commands."""

from typing import Any

import pytest

from tests.support.client_peer import Peer, followed
from towline.protocol.client.actions import (
    Answered,
    Closed,
    CloseSocket,
    Connect,
    CredentialNeeded,
)
from towline.protocol.client.commands import Send
from towline.protocol.errors import ProblemError


@pytest.mark.parametrize(("random", "waits"), [(0.0, [0] * 8), (0.5, [250, 500, 1000, 2000, 4000, 8000, 10000, 10000])])
def test_backoff_is_full_jitter_up_to_twenty_seconds(random: float, waits: list[int]) -> None:
    peer = Peer(random=random)
    peer.machine.follow("r")
    waited = []
    for _ in waits:
        peer.close(1006)
        waited.append(peer.wait())
    assert waited == waits


def test_a_minute_of_stability_earns_a_fresh_start() -> None:
    peer = followed()
    for _ in range(5):
        peer.close(1006)
        peer.wait()
    peer.welcome()
    peer.now_ms += 60_000
    peer.close(1006)
    assert peer.wait() == 250


def test_retry_ms_of_bye_is_honoured() -> None:
    peer = followed()
    peer.receive({"op": "bye", "code": 4000, "reason": "drain", "retry_ms": 7_500})
    peer.close(4000)
    assert peer.wait() == 7_500
    peer.close(1006)
    assert peer.wait() < 1_000


@pytest.mark.parametrize("code", [1000, 1001, 1006, 1011, 1012, 4000, 4001, 4010, 4013, 4029, 4499, 4999 - 500])
def test_codes_after_which_it_comes_back(code: int) -> None:
    peer = followed()
    peer.close(code)
    peer.wait()
    assert peer.orders[-1] == Connect()


@pytest.mark.parametrize("code", [1002, 1003, 1007, 1008, 1009, 1010, 4500, 4501, 4503, 4505, 4506, 4777, 4999])
def test_codes_after_which_it_stays_away(code: int) -> None:
    peer = followed()
    peer.close(code)
    assert peer.news[-1] == Closed(code, "")
    assert peer.machine.deadline() is None
    assert peer.machine.state == "closed"


def test_a_bye_tells_the_reason_of_a_close_without_code() -> None:
    peer = followed()
    peer.receive({"op": "bye", "code": 4503, "reason": "no rights left"})
    peer.close(1006)
    assert peer.news[-1] == Closed(4503, "no rights left")


def test_an_ended_credential_waits_for_a_new_one() -> None:
    peer = followed()
    peer.close(4005)
    assert peer.news[-1] == CredentialNeeded(None)
    assert peer.machine.deadline() is None
    peer.machine.use_token("tok2")
    peer.drain()
    assert peer.orders[-1] == Connect()
    peer.welcome()
    assert peer.last("hello")["token"] == "tok2"


def test_auth_required_is_told_and_answered() -> None:
    peer = followed()
    peer.receive({"op": "auth_required", "deadline": "2026-01-31T10:00:00.000Z"})
    assert peer.news[-1] == CredentialNeeded("2026-01-31T10:00:00.000Z")
    peer.machine.use_token("tok2")
    peer.drain()
    assert peer.last("auth")["token"] == "tok2"


def test_silence_is_first_asked_about_then_given_up() -> None:
    peer = followed()
    assert peer.wait() == 31_250
    assert peer.count("ping") == 1
    peer.wait()
    peer.close(1006)
    peer.wait()
    assert peer.orders[-2:] == [CloseSocket(4001, "nothing heard"), Connect()]


def test_a_pong_is_a_sign_of_life() -> None:
    peer = followed()
    peer.wait()
    peer.receive({"op": "pong"})
    assert peer.wait() == 31_250
    assert peer.count("ping") == 2


def test_no_welcome_is_given_up() -> None:
    peer = Peer()
    peer.machine.follow("r")
    peer.machine.receive_opened(peer.now_ms)
    assert peer.wait() == 10_000
    assert isinstance(peer.orders[-1], CloseSocket)


def command(**members: Any) -> Send:
    return Send(run="r", type="cancel", data={}, command_id="k1", **members)


def test_a_command_is_sent_again_until_its_receipt_comes() -> None:
    peer = Peer()
    peer.machine.command(command())
    peer.drain()
    peer.welcome()
    first = peer.last("command")
    assert first == {"op": "command", "id": first["id"], "run": "r", "type": "cancel", "data": {}, "command_id": "k1"}
    peer.close(1006)
    peer.wait()
    peer.welcome()
    assert peer.count("command") == 2
    receipt = {"command_id": "k1", "type": "cancel", "status": "accepted", "seq": 4, "duplicate": True}
    peer.receive({"op": "receipt", "id": peer.last("command")["id"], **receipt})
    assert peer.news[-1] == Answered("r", "k1", receipt, is_final=True)
    peer.close(1006)
    peer.wait()
    peer.welcome()
    assert peer.count("command") == 2


def test_a_command_that_waits_for_its_outcome_has_two_receipts() -> None:
    peer = Peer()
    peer.machine.command(command(wait="applied", timeout_ms=500))
    peer.welcome()
    frame_id = peer.last("command")["id"]
    peer.receive({"op": "receipt", "id": frame_id, "status": "accepted"})
    peer.receive({"op": "receipt", "id": frame_id, "status": "applied", "effect": "stopped"})
    answers = [n for n in peer.news if isinstance(n, Answered)]
    assert [(a.receipt["status"], a.is_final) for a in answers] == [("accepted", False), ("applied", True)]


def test_an_answered_command_can_be_sent_again() -> None:
    peer = Peer()
    peer.machine.command(command())
    peer.welcome()
    peer.receive({"op": "receipt", "id": peer.last("command")["id"], "status": "accepted"})
    peer.machine.command(command())
    peer.drain()
    assert peer.count("command") == 2
    peer.receive({"op": "receipt", "id": peer.last("command")["id"], "status": "accepted", "duplicate": True})
    assert sum(isinstance(n, Answered) for n in peer.news) == 2


def test_one_command_id_has_one_body() -> None:
    peer = Peer()
    peer.machine.command(command())
    peer.machine.command(command())
    with pytest.raises(ValueError, match="another body"):
        peer.machine.command(command(timeout_ms=1))
    peer.welcome()
    assert peer.count("command") == 1


def test_what_no_frame_holds_is_refused_here() -> None:
    with pytest.raises(ProblemError, match="too_large"):
        Peer().machine.command(Send(run="r", type="signal", data={"payload": "x" * 65_536}, command_id="k"))
