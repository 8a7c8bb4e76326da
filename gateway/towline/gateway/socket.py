"""The shell of `/v1/socket`: feeds the session machine, does what it says, runs subscriptions and commands.

Promises that commands of one socket are accepted in the order they came, and that whatever ends the socket ends
everything it started. Leaves what is allowed when to `protocol.session`, the order of events to `watching`, and how
frames reach the peer to `outbound`.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from towline.gateway import commanding, feeds, problems
from towline.gateway.admission import Seat, Turned
from towline.gateway.http import bearer
from towline.gateway.limits import Who
from towline.gateway.outbound import Gone, Outbound
from towline.gateway.services import Services, heartbeat_of
from towline.gateway.ticking import Ticker, now_ms
from towline.gateway.watching import Watching
from towline.protocol import commands
from towline.protocol import frames as f
from towline.protocol import session as s
from towline.protocol.closecodes import CloseCode
from towline.protocol.errors import Problem, ProblemError, problem
from towline.protocol.ids import random_id
from towline.protocol.limits import SUBSCRIPTIONS_PER_SOCKET
from towline.protocol.store.api import StoreError
from towline.protocol.tokens import BadToken, Credential

_security: Final = logging.getLogger("towline.security")

PENDING_COMMANDS: Final = 64
_WAITING_COMMANDS: Final = 256
_HEARTBEAT_FACTS: Final = 100


class Socket:
    """One socket, from upgrade to close. `serve` is its whole life; idle, it holds one task and one timer."""

    __slots__ = (
        *("_commands", "_feeds", "_origin", "_out", "_receive", "_services", "_tasks", "_ticker"),
        *("_watched", "seat", "session", "write"),
    )

    def __init__(self, services: Services, scope: Scope, receive: Receive, send: Send) -> None:
        self._services = services
        self._receive = receive
        self._origin: str | None = None
        settings = services.settings
        self.session = s.Session(
            random_id("con"),
            now_ms=now_ms(),
            heartbeat_ms=settings.heartbeat_ms,
            hello_ms=settings.hello_ms,
        )
        self.seat: Seat | None = None
        """Where it is counted; None when it was not let in."""
        self._out = Outbound(scope, send, self.session)
        self.write = self._out.write
        """See `peer.Peer`."""
        self._ticker = Ticker(settings.heartbeat_ms, self._on_due)
        self._watched: dict[str, tuple[Watching, asyncio.Task[None]]] = {}
        self._feeds: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._commands: asyncio.Queue[tuple[f.CommandFrame, str]] | None = None

    async def serve(self, scope: Scope) -> None:
        """Serves the peer until the socket is closed."""
        if (await self._receive())["type"] != "websocket.connect":
            return
        try:
            await self._open(scope)
            await self.act()
            await self._read()
        except Gone:
            pass
        finally:
            await self._end_all()

    async def _open(self, scope: Scope) -> None:
        headers, offered = Headers(scope=scope), scope.get("subprotocols", [])
        self._origin = headers.get("origin")
        await self._out.accept(f.SUBPROTOCOL if f.SUBPROTOCOL in offered else None)
        try:
            token = bearer(headers.get("authorization"))
        except ProblemError:
            token = ""  # a credential of a kind that is none of ours: not valid
        self.session.receive_upgrade(
            subprotocols=offered,
            is_origin_allowed=self._services.is_origin_allowed(self._origin),
            token=token,
            now_ms=now_ms(),
        )
        self._out.open()

    async def _read(self) -> None:
        while not self.session.is_closed:
            message = await self._receive()
            if message["type"] == "websocket.disconnect":
                return
            try:
                if self.seat is not None:
                    self.seat.count_frame()
            except Turned as turned:
                self.session.fail(turned.code, turned.reason, retry_ms=turned.retry_ms)
            if (text := message.get("text")) is None:
                self.session.receive_binary()
            else:
                self.session.receive_text(text, now_ms=now_ms())
            await self.act()
        # The close was sent; what the peer still says is read away until it answers, or the server gives up on it.
        while (await self._receive())["type"] != "websocket.disconnect":
            pass

    async def act(self) -> None:
        """Does what the session machine says."""
        bye: f.Bye | None = None
        for action in self._actions():
            match action:
                case s.Send():
                    if isinstance(action.frame, f.Bye):
                        bye = action.frame  # leaves together with the close
                        continue
                    await self._out.send_anyhow(action.frame)
                case s.Judge():
                    await self._judge(action)
                case s.Admit():
                    await self._admit(action.credential)
                case s.Perform():
                    await self._perform(action)
                case s.Close():
                    self._services.metrics.closed(action.code)
                    await self._out.close(action.code, action.reason, bye)
        self._arm()

    def _actions(self) -> Iterator[s.Action]:
        while actions := self.session.next_actions():
            yield from actions

    async def _judge(self, asked: s.Judge) -> None:
        """Feeds the session what a token or a ticket proves."""
        credentials = self._services.credentials
        try:
            if asked.token is not None:
                credential = await credentials.verify(asked.token)
            else:
                credential = await credentials.redeem(asked.ticket or "", "socket", self._origin)
            if self.seat is not None:
                self.seat.welcome(credential.subject)
        except Turned as turned:
            self.session.fail(turned.code, turned.reason, retry_ms=turned.retry_ms)
        except BadToken as error:
            _security.warning("denied: no valid credential, socket %s", self.session.connection)
            self.session.receive_refusal(str(error))
        except (ProblemError, StoreError):
            self.session.fail(CloseCode.OVERLOADED, "the credential cannot be judged now", retry_ms=1000)
        else:
            self.session.receive_credential(credential, now_ms=now_ms())

    # The way out ---------------------------------------------------------------------------------------------

    @property
    def is_lagging(self) -> bool:
        """See `peer.Peer`."""
        return self._out.is_lagging

    @property
    def takes_wires(self) -> bool:
        """See `peer.Peer`."""
        return self._out.takes_wires

    def buffered_bytes(self) -> int:
        """What was sent and not yet taken."""
        return self._out.buffered_bytes()

    async def ready(self) -> None:
        """See `peer.Peer`. Raises `Gone`."""
        await self._out.ready()

    async def send(self, frame: f.ServerFrame) -> None:
        """Sends a frame. Raises `Gone` when nobody is there to take it, or nobody may have it any more."""
        await self._out.send(frame)

    async def lose_place(self) -> None:
        """See `peer.Peer`."""
        self.session.fail(CloseCode.LOST_PLACE, "the store is older than what you hold; come back with your cursors")
        await self.act()

    async def drain(self, retry_ms: int) -> None:
        """Says bye because the gateway goes away."""
        self.session.drain(retry_ms)
        with contextlib.suppress(Gone):
            await self.act()

    # What frames ask -----------------------------------------------------------------------------------------

    async def _perform(self, action: s.Perform) -> None:
        frame = action.frame
        match frame:
            case f.Subscribe():
                await self._subscribe(frame, action.request_id)
            case f.Unsubscribe():
                await self._leave(frame.run, f.Unsubscribed(frame.run, "requested", frame.id))
            case f.CommandFrame():
                if self._commands is None:
                    self._commands = asyncio.Queue(PENDING_COMMANDS)
                    self._start(self._keep_commands)
                try:
                    self._commands.put_nowait((frame, action.request_id))
                except asyncio.QueueFull:
                    why = Problem("rate_limited", "Too many commands at once.", retry_after_ms=1000)
                    await self._refuse_command(frame, why, action.request_id)
            case f.Watch():
                if (old := self._feeds.pop(frame.feed, None)) is not None:
                    old.cancel()
                self._feeds[frame.feed] = self._start(lambda: self._watch_feed(frame, action.request_id))

    async def _subscribe(self, frame: f.Subscribe, request_id: str) -> None:
        credential = self.session.credential
        assert credential is not None
        try:
            await self._services.admission.subscribe(self._who(credential))
        except ProblemError as error:
            await self._refuse(error.problem, request_id, frame.id, frame.run)
            return
        if frame.run in self._watched:
            await self._leave(frame.run, f.Unsubscribed(frame.run, "replaced"))
        if len(self._watched) >= SUBSCRIPTIONS_PER_SOCKET:
            why = Problem("rate_limited", "Too many subscriptions on this socket.", limit=SUBSCRIPTIONS_PER_SOCKET)
            await self._refuse(why, request_id, frame.id, frame.run)
            return
        watching = Watching(self._services, self, credential, frame, address=self._address)
        task = self._start(lambda: self._watch(watching, frame, request_id))
        self._watched[frame.run] = (watching, task)

    async def _watch(self, watching: Watching, frame: f.Subscribe, request_id: str) -> None:
        try:
            await watching.run_to_end()
        except (ProblemError, StoreError) as error:
            await self._refuse(problems.problem_of(error, request_id), request_id, frame.id, frame.run)
        finally:
            if (entry := self._watched.get(frame.run)) is not None and entry[0] is watching:
                del self._watched[frame.run]

    async def _watch_feed(self, frame: f.Watch, request_id: str) -> None:
        services = self._services
        try:
            await feeds.serve(
                services.feeds, self, frame, lambda: self.session.credential, now_ms=services.store.now_ms
            )
        except ProblemError as error:
            await self._refuse(error.problem, request_id, frame.id)

    async def _leave(self, run: str, farewell: f.Unsubscribed) -> None:
        """Ends the subscription of `run`, if there is one; after `farewell` nothing of it follows."""
        if (entry := self._watched.pop(run, None)) is not None and entry[1] is not asyncio.current_task():
            entry[1].cancel()
            await asyncio.wait([entry[1]])
        await self.send(farewell)

    async def _admit(self, credential: Credential) -> None:
        await asyncio.gather(*(watching.readmit(credential) for watching, _ in list(self._watched.values())))

    async def _keep_commands(self) -> None:
        commands = self._commands
        assert commands is not None
        while True:
            frame, request_id = await commands.get()
            await self._command(frame, request_id)

    async def _command(self, frame: f.CommandFrame, request_id: str) -> None:
        credential = self.session.credential
        assert credential is not None
        try:
            await self._services.admission.command(self._who(credential), frame.type)
            if frame.wait is not None and len(self._tasks) > _WAITING_COMMANDS + len(self._watched):
                raise problem("rate_limited", "Too many commands wait for their outcome.", retry_after_ms=1000)
            receipt = await commanding.accept(
                self._services,
                credential,
                frame.run,
                type_=frame.type,
                data=frame.data,
                command_id=frame.command_id,
                not_after=frame.not_after,
            )
        except Exception as error:
            await self._refuse_command(frame, problems.problem_of(error, request_id), request_id)
            return
        await self.send(f.receipt(frame.id, receipt))
        if frame.wait is not None and receipt.status == "accepted":
            self._start(lambda: self._second_receipt(frame, receipt, credential, request_id))

    async def _second_receipt(
        self, frame: f.CommandFrame, receipt: commands.Receipt, credential: Credential, request_id: str
    ) -> None:
        try:
            outcome = await commanding.outcome(
                self._services, frame.run, credential.subject, receipt, timeout_ms=frame.timeout_ms
            )
            await self._services.reach(self.session.credential or credential, frame.run, verb=None)
        except (ProblemError, StoreError) as error:
            await self._refuse(problems.problem_of(error, request_id), request_id, frame.id, frame.run)
            return
        await self.send(f.receipt(frame.id, outcome))

    def _who(self, credential: Credential) -> Who:
        return Who(credential.subject, self._address)

    @property
    def _address(self) -> str | None:
        return None if self.seat is None else self.seat.address

    async def _refuse(self, why: Problem, request_id: str, frame_id: str | None, run: str | None = None) -> None:
        self._services.metrics.refused(why.code)
        await self.send(f.refused(why, request_id=request_id, frame_id=frame_id, run=run))

    async def _refuse_command(self, frame: f.CommandFrame, why: Problem, request_id: str) -> None:
        self._services.metrics.refused(why.code)
        refusal = commands.refusal(frame.command_id, frame.type, why, request_id)
        await self.send(f.receipt(frame.id, refusal))

    # Time ----------------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        if not self.session.is_closed:
            self._ticker.arm(self.session.deadline_ms())

    def _on_due(self) -> None:
        self._start(self._pass_time)

    async def _pass_time(self) -> None:
        """The session's deadlines, and a heartbeat every so often."""
        self.session.advance(now_ms())
        await self.act()
        if self._ticker.take_beat() and self.session.credential is not None:
            await self._beat()
        self._arm()

    async def _beat(self) -> None:
        heads: dict[str, int] = {}
        quiet = [watching for watching, _ in self._watched.values() if watching.is_live and watching.is_quiet]
        for watching in quiet:
            head = self._services.hub.head_of(watching.run)
            heads[watching.run] = watching.position.seq if head is None else head.seq
        workers = await self._workers([watching for watching in quiet if _is_named_to(watching)])
        for watching, _ in self._watched.values():
            watching.is_quiet = True
        await self.send(f.Heartbeat(heads, workers))

    async def _workers(self, quiet: list[Watching]) -> dict[str, f.WorkerBeat]:
        store = self._services.store
        found: dict[str, f.WorkerBeat] = {}
        answers = await asyncio.gather(
            *(store.facts(watching.run) for watching in quiet[:_HEARTBEAT_FACTS]), return_exceptions=True
        )
        for facts in answers:
            if not isinstance(facts, BaseException) and (beat := heartbeat_of(facts, store.now_ms())) is not None:
                found[facts.run] = f.WorkerBeat(beat.heartbeat_at, beat.step)
        return found

    # Tasks ---------------------------------------------------------------------------------------------------

    def _start(self, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        task = asyncio.create_task(self._guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        """A fault in one task ends the socket, not silently: the client comes back and finds its place."""
        try:
            await work()
        except Gone:
            pass
        except Exception as error:
            problems.log_fault(error, self.session.connection)
            self.session.fail(CloseCode.LOST_PLACE, "a fault of the server", retry_ms=1000)
            with contextlib.suppress(Gone):
                await self.act()

    async def _end_all(self) -> None:
        self._ticker.stop()
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(tuple(self._tasks))


def _is_named_to(watching: Watching) -> bool:
    """Whether the watcher may know who works: everyone but a share link."""
    return watching.caller is not None and watching.caller.role != "share"
