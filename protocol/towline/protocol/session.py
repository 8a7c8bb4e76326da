"""One socket: from the upgrade to the close. What a peer may say when, and with which code it ends.

The machine does no I/O and has no clock: its shell feeds facts with the time they came at, then takes
`next_actions()` and does them in order, and calls `advance` at `deadline_ms()`. Whether a token or a ticket is good
only the shell can find out: the machine says `Judge` and holds back what comes until the verdict is fed to it.

    opening     upgraded; Origin, subprotocol and a credential of the upgrade are judged at once
    greeting    waits for `hello`, at most 10 s; anything else is 4500, no frame at all is 4501
    open        welcomed; frames are performed until the credential ends, the peer leaves or the server drains
    closed      a close was decided; nothing follows it

    fact                            greeting                       open
    hello, good credential          welcome -> open                problem `conflict` (one without token: nothing)
    hello, bad credential           4501                           -
    auth, same subject              4500                           authenticated
    auth, another subject or bad    4500                           4501
    subscribe, command, …           4500                           Perform
    known op, wrong members         problem, 4500                  problem
    no JSON object with an op       4500                           4500
    10 s without hello              4501                           -
    half of the remaining life,
      at most 60 s before the end   -                              auth_required, once a credential
    the credential's end            -                              4005
    drain                           4000                           4000

Each close is preceded by `bye` with the same code, except 4506: a peer that does not speak our subprotocol is told
by the close alone. Leaves rights on runs to the shell, which asks again at every `Admit`.
"""

from collections.abc import Sequence
from typing import Final, Literal

from msgspec import Struct

from towline.protocol import frames as f
from towline.protocol import times
from towline.protocol.closecodes import CloseCode
from towline.protocol.errors import Problem
from towline.protocol.limits import HEARTBEAT_MS, HELLO_MS, Limits
from towline.protocol.tokens import Credential

WARN_MS: Final = 60_000
"""A client is asked for a newer credential at most this long before the end of the old one."""


class Judge(Struct, frozen=True):
    """Find out what a token or a ticket proves; feed it to `receive_credential` or `receive_refusal`."""

    token: str | None
    ticket: str | None = None


class Send(Struct, frozen=True):
    """Send a frame."""

    frame: f.ServerFrame


class Admit(Struct, frozen=True):
    """A credential holds from here on: look again at what it may do."""

    credential: Credential


class Perform(Struct, frozen=True):
    """Do what a frame asks and answer it with its `id`. `request_id` names it in problems."""

    frame: f.Subscribe | f.Unsubscribe | f.CommandFrame | f.Watch
    request_id: str


class Close(Struct, frozen=True):
    """Close the socket; the last action."""

    code: int
    reason: str


Action = Send | Judge | Admit | Perform | Close


class Session:
    """The machine of one socket. `connection` is the name by which logs and the client know it."""

    __slots__ = (
        *("_actions", "_credential", "_heartbeat_ms", "_held_back", "_hello_by_ms", "_judged", "_limits", "_phase"),
        *("_requests", "_warn_at_ms", "_was_greeted", "connection"),
    )

    def __init__(
        self,
        connection: str,
        *,
        now_ms: int,
        heartbeat_ms: int = HEARTBEAT_MS,
        hello_ms: int = HELLO_MS,
        limits: Limits | None = None,
    ) -> None:
        self.connection = connection
        self._heartbeat_ms = heartbeat_ms
        self._limits = limits or Limits()
        self._phase: Literal["opening", "greeting", "open", "closed"] = "opening"
        self._actions: list[Action] = []
        self._credential: Credential | None = None
        self._judged: f.Hello | f.Auth | None = None
        self._held_back: list[str] = []
        self._hello_by_ms = now_ms + hello_ms
        self._warn_at_ms: int | None = None
        self._was_greeted = False
        self._requests = 0

    @property
    def credential(self) -> Credential | None:
        """Who speaks, once welcomed."""
        return self._credential

    @property
    def is_closed(self) -> bool:
        """Whether a close was decided."""
        return self._phase == "closed"

    def deadline_ms(self) -> int | None:
        """When `advance` must be called, unless something happens before; None when nothing is due."""
        if self._phase == "closed":
            return None
        if self._credential is None:
            return self._hello_by_ms
        return self._credential.expires_at_ms if self._warn_at_ms is None else self._warn_at_ms

    def next_actions(self) -> list[Action]:
        """What to do now, in order."""
        actions, self._actions = self._actions, []
        return actions

    # Facts ---------------------------------------------------------------------------------------------------

    def receive_upgrade(
        self, *, subprotocols: Sequence[str], is_origin_allowed: bool, token: str | None, now_ms: int
    ) -> None:
        """The socket was upgraded; `token` is the bearer of its Authorization header, if it had one."""
        if self._phase == "closed":
            return  # it was not let in; what was decided then is said now
        self._phase = "greeting"
        if f.SUBPROTOCOL not in subprotocols:
            self._close(CloseCode.NO_SUBPROTOCOL, f"offer the subprotocol {f.SUBPROTOCOL}", say_bye=False)
        elif not is_origin_allowed:
            self._close(CloseCode.FORBIDDEN, "this Origin is not allowed here")
        elif token is not None:
            self._ask(f.Hello(token=token))

    def receive_text(self, text: str, *, now_ms: int) -> None:
        """A text frame came."""
        self.advance(now_ms)
        if self._phase == "closed":
            return
        if self._judged is not None:
            self._held_back.append(text)
            return
        try:
            frame = f.read_client_frame(text)
        except f.NotAFrame as error:
            self._close(CloseCode.NOT_A_FRAME, str(error))
            return
        except f.FrameRefused as error:
            self._send(f.refused(error.problem, request_id=self._request_id(), frame_id=error.id, run=error.run))
            if self._phase == "greeting":
                self._close(CloseCode.NOT_A_FRAME, "the first frame is hello")
            return
        if self._phase == "greeting":
            self._greet(frame)
        else:
            self._take(frame)

    def receive_credential(self, credential: Credential, *, now_ms: int) -> None:
        """What was to be judged is good and proves this."""
        asked, self._judged = self._judged, None
        if self._phase == "closed" or asked is None:
            return
        if isinstance(asked, f.Auth):
            self._renew(asked, credential, now_ms)
        else:
            self._admit(credential, now_ms)
        held_back, self._held_back = self._held_back, []
        for text in held_back:
            self.receive_text(text, now_ms=now_ms)

    def receive_refusal(self, why: str) -> None:
        """What was to be judged is no good."""
        self._judged = None
        self._close(CloseCode.BAD_CREDENTIAL, why)

    def receive_binary(self) -> None:
        """A binary frame came; none of ours is."""
        self._close(CloseCode.NOT_A_FRAME, "frames are text")

    def advance(self, now_ms: int) -> None:
        """Time went on to `now_ms`."""
        if self._phase == "closed":
            return
        if self._credential is None:
            if now_ms >= self._hello_by_ms:
                self._close(CloseCode.BAD_CREDENTIAL, "no hello in time")
        elif now_ms >= self._credential.expires_at_ms:
            self._close(CloseCode.CREDENTIAL_ENDED, "the credential has ended; get a new one")
        elif self._warn_at_ms is not None and now_ms >= self._warn_at_ms:
            self._warn_at_ms = None
            self._send(f.AuthRequired(times.to_wire(self._credential.expires_at_ms)))

    def drain(self, retry_ms: int) -> None:
        """The server goes away; the client comes back after `retry_ms`."""
        self._close(CloseCode.DRAIN, "the server is going away", retry_ms=retry_ms)

    def fail(self, code: CloseCode, reason: str, *, retry_ms: int | None = None) -> None:
        """The shell must end the socket, for a reason of its own."""
        self._close(code, reason, retry_ms=retry_ms)

    # The rows of the table -------------------------------------------------------------------------------------

    def _greet(self, frame: f.ClientFrame) -> None:
        if not isinstance(frame, f.Hello):
            self._close(CloseCode.NOT_A_FRAME, "the first frame is hello")
        elif (frame.token is None) == (frame.ticket is None):
            self._close(CloseCode.BAD_CREDENTIAL, "hello carries one credential; send a token or a ticket")
        else:
            self._was_greeted = True
            self._ask(frame)

    def _ask(self, frame: f.Hello | f.Auth) -> None:
        self._judged = frame
        self._actions.append(Judge(frame.token, frame.ticket if isinstance(frame, f.Hello) else None))

    def _take(self, frame: f.ClientFrame) -> None:
        match frame:
            case f.Hello():
                if self._was_greeted or frame.token is not None or frame.ticket is not None:
                    again = Problem("conflict", "The socket has a credential already; renew it with `auth`.")
                    self._send(f.refused(again, request_id=self._request_id()))
                self._was_greeted = True  # a client may introduce itself although the upgrade carried its token
            case f.Auth():
                self._ask(frame)
            case f.Ping():
                self._send(f.Pong(frame.id))
            case f.Subscribe() | f.Unsubscribe() | f.CommandFrame() | f.Watch():
                self._actions.append(Perform(frame, self._request_id()))

    def _admit(self, credential: Credential, now_ms: int) -> None:
        self._phase = "open"
        self._hold(credential, now_ms)
        self._send(
            f.Welcome(self.connection, self._heartbeat_ms, self._limits, times.to_wire(credential.expires_at_ms))
        )

    def _renew(self, frame: f.Auth, credential: Credential, now_ms: int) -> None:
        if self._credential is None or credential.subject != self._credential.subject:
            self._close(CloseCode.BAD_CREDENTIAL, "the credential is for another subject")
            return
        self._hold(credential, now_ms)
        self._send(f.Authenticated(frame.id, credential.subject, times.to_wire(credential.expires_at_ms)))

    def _hold(self, credential: Credential, now_ms: int) -> None:
        self._credential = credential
        left_ms = max(0, credential.expires_at_ms - now_ms)
        self._warn_at_ms = credential.expires_at_ms - min(left_ms // 2, WARN_MS)
        self._actions.append(Admit(credential))

    def _send(self, frame: f.ServerFrame) -> None:
        self._actions.append(Send(frame))

    def _close(self, code: CloseCode, reason: str, *, retry_ms: int | None = None, say_bye: bool = True) -> None:
        if self._phase == "closed":
            return
        self._phase = "closed"
        if say_bye:
            self._send(f.Bye(int(code), reason, retry_ms))
        self._actions.append(Close(int(code), reason))

    def _request_id(self) -> str:
        self._requests += 1
        return f"{self.connection}.{self._requests}"
