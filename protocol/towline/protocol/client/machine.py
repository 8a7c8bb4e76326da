"""The client of Towline as a machine without I/O: facts in, orders and news out.

    idle ──wish──> connecting ──opened, welcome──> replaying <──> live ──stop, final close code──> closed
                       ^______________socket gone, back-off______/

Feed it what happened (`receive_opened`, `receive_text`, `receive_closed`, `receive_timeout`) and what is
wanted (`follow`, `command`, `use_token`, `stop`); after each call carry out `next_actions()` in order, and
call `receive_timeout` when `deadline()` has come. Times are milliseconds of any clock that does not jump.

Promises, whatever the network and the server do: the events told of one run are seq 1, 2, 3 … from where they
were asked for, each exactly once and in order, or `Placed` says what is not; a command is sent again with its
id until its receipt comes; reconnecting keeps to the close codes, full-jitter back-off and `retry_ms`; a dead
link is found by silence. Unknown ops and fields are ignored.

Leaves the socket to the shell (`link`), and keeping cursors over a restart to the application. Read `actions`
and `subscription` first.
"""

from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec

from towline.protocol.client.actions import (
    Action,
    Closed,
    CloseSocket,
    Connect,
    CredentialNeeded,
    Delta,
    Dropped,
    Placed,
    SendText,
)
from towline.protocol.client.backoff import Backoff
from towline.protocol.client.commands import Outbox, Send
from towline.protocol.client.subscription import CursorFrame, EventsFrame, Hole, SubscribedFrame, Subscription
from towline.protocol.closecodes import CloseCode, may_reconnect
from towline.protocol.cursor import BadCursor
from towline.protocol.errors import problem
from towline.protocol.limits import CLIENT_FRAME_BYTES, HEARTBEAT_MS, HELLO_MS
from towline.protocol.values import JsonObject

State = Literal["idle", "connecting", "replaying", "live", "closed"]
_Link = Literal["idle", "connecting", "greeting", "open", "closing", "waiting", "locked_out", "closed"]
"""`waiting`: for the back-off; `locked_out`: for a new token; `closing`: CloseSocket was ordered."""

ASKINGS: Final = 3
"""How often a subscription is asked for without progress before the socket is given up."""
_TRY_LATER: Final = frozenset({"unavailable", "overloaded", "rate_limited", "internal"})
_FRAME_FAULT: Final = 1002
_FRAME_MARGIN_BYTES: Final = 200
"""Room for what surrounds a command in its frame."""
_NO_STATUS: Final = frozenset({1005, 1006})

_encoder: Final = msgspec.json.Encoder()


class ClientMachine:
    """One client: a link, its subscriptions and its commands.

    Args:
        token: the credential; a fresh one goes to `use_token`.
        random: answers in [0, 1); the jitter of back-off.
        name: what this client calls itself to the server.
    """

    def __init__(self, token: str, *, random: Callable[[], float], name: str = "towline") -> None:
        self._token = token
        self._sent_token: str | None = None
        self._name = name
        self._backoff = Backoff(random)
        self._link: _Link = "idle"
        self._subscriptions: dict[str, Subscription] = {}
        self._outbox = Outbox()
        self._actions: list[Action] = []
        self._frames = 0
        self._now_ms = 0
        self._welcomed_ms: int | None = None
        self._heard_ms = 0
        self._pinged = False
        self._heartbeat_ms = HEARTBEAT_MS
        self._due_ms: int | None = None
        self._retry_ms: int | None = None
        self._bye: tuple[int, str] | None = None
        self._stopping = False

    # What the application wants.

    @property
    def state(self) -> State:
        """For people: `live` when every subscription has handed out all that is stored."""
        if self._link in ("idle", "closed"):
            return "closed" if self._link == "closed" else "idle"
        if self._link != "open":
            return "connecting"
        return "live" if all(s.phase in ("live", "held") for s in self._subscriptions.values()) else "replaying"

    def follow(self, run: str, after: str = "0", *, limit: int | None = None, deltas: bool = False) -> None:
        """Hand out the events of `run` after this cursor (`0`, a bare seq and `latest` serve too).

        Raises `BadCursor`, and `ValueError` if the run is followed already: a client has one place in a run.
        """
        if run in self._subscriptions:
            raise ValueError(f"{run} is followed already; one client holds one place in a run")
        self._subscriptions[run] = Subscription(run, after, limit=limit, deltas=deltas)
        self._work()

    def unfollow(self, run: str) -> None:
        """Hand out no more of `run`."""
        subscription = self._subscriptions.pop(run, None)
        if subscription is not None and self._link == "open" and subscription.asked_as is not None:
            self._unsubscribe(run)

    def hold(self, run: str) -> None:
        """The application is behind: nothing more of `run` until `release`. The log is the buffer."""
        if (subscription := self._subscriptions.get(run)) is not None and subscription.phase != "held":
            if self._link == "open" and subscription.asked_as is not None:
                self._unsubscribe(run)
            subscription.hold()

    def release(self, run: str) -> None:
        """Go on with `run` from where `hold` stopped it."""
        if (subscription := self._subscriptions.get(run)) is not None:
            subscription.release()
            self._work()

    def command(self, send: Send) -> None:
        """Send a command, again on each new socket, until its receipt (`Answered`) comes.

        Raises `ProblemError` (`too_large`) for what no frame holds, and `ValueError` if the id waits with
        another body.
        """
        if len(_encoder.encode(send)) > CLIENT_FRAME_BYTES - _FRAME_MARGIN_BYTES:
            raise problem(
                "too_large", "The command does not fit a frame; upload what is large.", limit=CLIENT_FRAME_BYTES
            )
        self._outbox.add(send)
        self._work()

    def forget(self, run: str, command_id: str) -> None:
        """Send that command no more; it may have been accepted."""
        self._outbox.forget(run, command_id)

    def use_token(self, token: str) -> None:
        """A fresh credential of the same subject."""
        self._token = token
        if self._link == "open":
            self._send({"op": "auth", "id": self._frame_id(), "token": token})
            self._sent_token = token
        elif self._link == "locked_out":
            self._connect()

    def stop(self) -> None:
        """Close for good; wishes are dropped."""
        self._stopping = True
        self._subscriptions.clear()
        if self._link in ("greeting", "open"):
            self._close(1000, "done")
        elif self._link not in ("connecting", "closing"):
            self._link, self._due_ms = "closed", None

    # What happened.

    def receive_opened(self, now_ms: int) -> None:
        """The socket that `Connect` asked for is open."""
        self._now_ms = self._heard_ms = now_ms
        if self._stopping:
            self._link = "greeting"
            self._close(1000, "done")
            return
        self._link, self._sent_token, self._due_ms = "greeting", self._token, now_ms + HELLO_MS
        self._send({"op": "hello", "token": self._token, "client": self._name})

    def receive_closed(self, code: int, reason: str, now_ms: int) -> None:
        """The socket is gone, or could not be had (1006)."""
        self._now_ms = now_ms
        was, self._due_ms = self._link, None
        if self._bye is not None and code in (*_NO_STATUS, self._bye[0]):
            code, reason = self._bye[0], reason or self._bye[1]
        self._bye = None
        self._outbox.lose()
        for subscription in self._subscriptions.values():
            subscription.lose()
        if self._welcomed_ms is not None:
            self._backoff.receive_lifetime(now_ms - self._welcomed_ms)
            self._welcomed_ms = None
        if self._stopping:
            self._link = "closed"
        elif code == CloseCode.CREDENTIAL_ENDED and self._token == self._sent_token:
            self._link = "locked_out"
            self._actions.append(CredentialNeeded(None))
        elif was == "closing" or may_reconnect(code):
            self._link = "waiting"
            self._due_ms = now_ms + self._backoff.next_ms(self._retry_ms)
        else:
            self._link = "closed"
            self._actions.append(Closed(code, reason))
        self._retry_ms = None

    def receive_timeout(self, now_ms: int) -> None:
        """`deadline()` has come. Too early or too late does no harm."""
        self._now_ms = now_ms
        if self._link == "waiting" and self._due_ms is not None and now_ms >= self._due_ms:
            self._connect()
        elif self._link == "greeting" and self._due_ms is not None and now_ms >= self._due_ms:
            self._close(CloseCode.HEARTBEAT_LOST, "no welcome")
        elif self._link == "open":
            silent_ms = now_ms - self._heard_ms
            if silent_ms >= 2 * self._heartbeat_ms:
                self._close(CloseCode.HEARTBEAT_LOST, "nothing heard")
                return
            if silent_ms >= self._ping_after_ms and not self._pinged:
                self._pinged = True
                self._send({"op": "ping", "id": self._frame_id()})
            self._ask_all()

    def deadline(self) -> int | None:
        """When to call `receive_timeout`; None: not before something else happens."""
        if self._link != "open":
            return self._due_ms
        silence = 2 * self._heartbeat_ms if self._pinged else self._ping_after_ms
        later = [s.not_before_ms for s in self._subscriptions.values() if s.phase == "wanted"]
        return min([self._heard_ms + silence, *later])

    def receive_text(self, text: str | bytes, now_ms: int) -> None:
        """One text frame of the server. One that is no frame costs the socket, nothing else."""
        self._now_ms = self._heard_ms = now_ms
        self._pinged = False
        if self._link not in ("greeting", "open"):
            return
        try:
            frame = msgspec.json.decode(text)
            if not isinstance(frame, dict):
                raise msgspec.ValidationError("a frame is an object")
            self._receive(frame)
        except (msgspec.DecodeError, msgspec.ValidationError, BadCursor) as error:
            self._close(_FRAME_FAULT, f"not a frame: {error}"[:100])

    def next_actions(self) -> list[Action]:
        """What to do and tell now, in order."""
        actions, self._actions = self._actions, []
        return actions

    # Frames.

    def _receive(self, frame: JsonObject) -> None:
        op, run = frame.get("op"), frame.get("run")
        if op == "welcome":
            self._welcome(frame)
        elif op == "bye":
            self._retry_ms = _positive(frame.get("retry_ms"))
            self._bye = msgspec.convert((frame.get("code"), frame.get("reason") or ""), tuple[int, str])
        elif op == "auth_required":
            self._actions.append(CredentialNeeded(str(frame.get("deadline"))))
        elif op == "heartbeat":
            for name, head in msgspec.convert(frame.get("heads", {}), dict[str, Any]).items():
                if (held := self._subscriptions.get(name)) is not None and held.is_behind(head):
                    self._ask_again(held)
        elif op == "receipt":
            if self._outbox.knows(frame.get("id")):
                receipt = {k: v for k, v in frame.items() if k not in ("op", "id")}
                self._actions.append(self._outbox.receive_receipt(frame["id"], receipt))
        elif op == "problem":
            self._problem(frame)
        elif isinstance(run, str) and (subscription := self._subscriptions.get(run)) is not None:
            self._receive_of(subscription, op, frame)

    def _receive_of(self, subscription: Subscription, op: object, frame: JsonObject) -> None:
        try:
            if op == "subscribed":
                if subscription.phase == "asked" and frame.get("id") == subscription.asked_as:
                    placed: Placed = subscription.receive_subscribed(msgspec.convert(frame, SubscribedFrame))
                    self._actions.append(placed)
            elif op == "unsubscribed":
                self._unsubscribed(subscription, frame)
            elif not subscription.is_placed:
                return
            elif op == "events":
                if (received := subscription.receive_events(msgspec.convert(frame, EventsFrame))) is not None:
                    self._actions.append(received)
            elif op == "live":
                self._actions.append(subscription.receive_live(msgspec.convert(frame, CursorFrame)))
            elif op == "end":
                self._actions.append(subscription.receive_end(msgspec.convert(frame, CursorFrame)))
                del self._subscriptions[subscription.run]
            elif op == "delta":
                self._actions.append(Delta(subscription.run, frame))
        except Hole:
            self._ask_again(subscription)

    def _welcome(self, frame: JsonObject) -> None:
        self._link, self._due_ms, self._welcomed_ms = "open", None, self._now_ms
        self._heartbeat_ms = _positive(frame.get("heartbeat_ms")) or HEARTBEAT_MS
        if self._token != self._sent_token:
            self.use_token(self._token)
        self._work()

    def _unsubscribed(self, subscription: Subscription, frame: JsonObject) -> None:
        code = frame.get("code")
        if code in ("revoked", "purged"):
            self._drop(subscription, str(code), None)
        elif code not in ("requested", "replaced") and subscription.is_placed:
            # `shed`, or a reason of a later version: wait as told, then go on from the own cursor.
            self._later(subscription, _positive(frame.get("retry_ms")))

    def _problem(self, frame: JsonObject) -> None:
        why, frame_id, run = msgspec.convert(frame.get("problem"), dict[str, Any]), frame.get("id"), frame.get("run")
        if self._outbox.knows(frame_id):
            assert isinstance(frame_id, str)
            self._actions.append(self._outbox.receive_receipt(frame_id, {"status": "refused", "problem": why}))
            return
        for asked in [s for s in self._subscriptions.values() if s.phase == "asked"]:
            if asked.asked_as == frame_id or (frame_id is None and asked.run == run):
                code = str(why.get("code"))
                if code in _TRY_LATER:
                    self._later(asked, _positive(why.get("retry_after_ms")))
                else:
                    self._drop(asked, code, why)

    # Orders.

    def _work(self) -> None:
        """Does what is wanted as far as the link allows; opens one if there is none."""
        if self._link == "idle" and not self._stopping:
            self._connect()
        elif self._link == "open":
            self._ask_all()
            for send in self._outbox.unsent():
                self._send(self._outbox.frame(send, self._frame_id()))

    def _connect(self) -> None:
        self._link, self._due_ms = "connecting", None
        self._actions.append(Connect())

    def _ask_all(self) -> None:
        for subscription in self._subscriptions.values():
            if subscription.phase == "wanted" and subscription.not_before_ms <= self._now_ms:
                self._send(subscription.ask(self._frame_id()))

    def _ask_again(self, subscription: Subscription) -> None:
        subscription.failures += 1
        if subscription.failures > ASKINGS:
            subscription.failures = 0
            self._close(CloseCode.LOST_PLACE, f"no progress in {subscription.run}")
        else:
            self._send(subscription.ask(self._frame_id()))

    def _later(self, subscription: Subscription, retry_ms: int | None) -> None:
        subscription.lose()
        subscription.not_before_ms = self._now_ms + self._backoff.next_ms(retry_ms)

    def _drop(self, subscription: Subscription, code: str, problem: JsonObject | None) -> None:
        del self._subscriptions[subscription.run]
        self._actions.append(Dropped(subscription.run, code, problem))

    def _unsubscribe(self, run: str) -> None:
        self._send({"op": "unsubscribe", "id": self._frame_id(), "run": run})

    def _close(self, code: int, reason: str) -> None:
        self._link, self._due_ms = "closing", None
        self._actions.append(CloseSocket(code, reason))

    def _send(self, frame: JsonObject) -> None:
        if self._link != "closing":
            self._actions.append(SendText(_encoder.encode(frame).decode()))

    def _frame_id(self) -> str:
        self._frames += 1
        return f"c{self._frames}"

    @property
    def _ping_after_ms(self) -> int:
        return self._heartbeat_ms * 5 // 4


def _positive(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None
