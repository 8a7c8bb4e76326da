"""One subscription of one peer, a socket or a stream: the loop that does what the subscription machine says.

Promises that frames of a run leave in the machine's order, that a store which is away is waited for once the client
was told where it stands, and that nothing queues here: a peer that lags keeps only its cursor, and reads the log
when it takes again. While a peer keeps up and the machine says that a batch is what comes next, the batch's bytes,
framed once for all of its class, are written at once and no task wakes. Leaves order and recovery to
`protocol.subscription`.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from typing import Final, TypeVar, assert_never

from towline.gateway.admission import Shed
from towline.gateway.guard import UNJUDGED
from towline.gateway.limits import Who
from towline.gateway.patience import when_back
from towline.gateway.peer import Peer
from towline.gateway.prepared import Batch
from towline.gateway.services import Services
from towline.gateway.signal import Signal
from towline.gateway.texts import TextStream
from towline.protocol import frames as f
from towline.protocol import subscription as s
from towline.protocol.codec import Entry
from towline.protocol.cursor import Cursor
from towline.protocol.errors import ProblemError
from towline.protocol.projection import Caller, Role, project_entry, reader_class
from towline.protocol.store.api import Loaded, LogPage, NoRun, RunGone, StoreError
from towline.protocol.tokens import Credential

T = TypeVar("T")
_PATIENCE_S: Final = 0.5


class Watching:
    """A run being watched. `run_to_end` is its whole life; cancel it to end it early."""

    __slots__ = (
        *("_caller", "_credential", "_ended_by", "_frame", "_is_idle", "_loaded", "_machine", "_metrics", "_next_seq"),
        *("_one_event_a_frame", "_owed_bytes", "_peer", "_reader", "_retry_ms", "_sent", "_services", "_texts"),
        *("_wake", "_was_told", "_who", "_write", "access_version", "is_quiet"),
    )

    def __init__(
        self,
        services: Services,
        peer: Peer,
        credential: Credential,
        frame: f.Subscribe,
        *,
        one_event_a_frame: bool = False,
        address: str | None = None,
    ) -> None:
        self._services = services
        self._peer = peer
        self._credential = credential
        self._who = Who(credential.subject, address)
        self._owed_bytes = 0
        self._retry_ms: int | None = None
        self._frame = frame
        self._one_event_a_frame = one_event_a_frame
        self._machine = s.Subscription(frame.after, limit=frame.limit)
        self._wake = Signal()
        self._texts: TextStream | None = None
        if "delta" in frame.include and credential.deltas:
            self._texts = TextStream(
                services.store,
                frame.run,
                wake=self._wake.set,
                write=self._write_text,
                is_shed=lambda: services.sheds_text(),
            )
        self._loaded: Loaded | None = None
        self._caller: Caller | None = None
        self._reader: Role = "share"
        self._was_told = False
        self._is_idle = False
        self._write = peer.write
        self._metrics = services.metrics
        self._next_seq = 0
        """The seq that may be written past the machine while this rests; 0: none."""
        self._sent: Batch | None = None
        """What was written so last, and the machine does not know."""
        self._ended_by: f.UnsubscribedCode | None = None
        self.access_version = UNJUDGED
        self.is_quiet = False

    @property
    def run(self) -> str:
        """The run's id."""
        return self._frame.run

    @property
    def caller(self) -> Caller | None:
        """Who reads, once access was decided."""
        return self._caller

    @property
    def is_live(self) -> bool:
        """Whether `live` was sent."""
        return self._machine.is_live

    @property
    def position(self) -> Cursor:
        """The cursor of the last event sent."""
        return self._machine.position if self._sent is None else self._sent.last

    async def readmit(self, credential: Credential) -> None:
        """A newer credential of the same subject: looks again at what it may read."""
        self._credential = credential
        try:
            await self.judge_again()
        except StoreError:
            self.access_version = UNJUDGED

    async def judge_again(self) -> None:
        """See `guard.Guarded`."""
        try:
            caller, standing = await self._services.judge(self._credential, self.run)
        except ProblemError:
            self._end("revoked")
        except RunGone:
            self._end_purged()
        else:
            self._become(caller, standing.version)

    def _become(self, caller: Caller, version: str) -> None:
        self._caller = caller
        self._reader = reader_class(caller.role)
        if self._texts is not None:
            self._texts.admit(caller)
        self.access_version = version

    def _end(self, code: f.UnsubscribedCode) -> None:
        """From here on nothing more of the run is sent but the farewell."""
        self._ended_by = code
        self._is_idle = False
        self._next_seq = 0
        self._wake.set()

    def _end_purged(self) -> None:
        self._services.logs.forget(self.run)
        self._end("purged")

    def receive_batch(self, batch: Batch) -> None:
        """See `hub.Follower`. For a reader who keeps up this is all that happens, so it is short."""
        if batch.first_seq == self._next_seq and self._write(batch.wire(self._reader)):
            self._sent = batch
            self._next_seq = batch.next_seq
            self._metrics.live_events += batch.count
            self.is_quiet = False
            if self._texts is not None:
                self._texts.receive_sent(batch.entries)
            if batch.ending is None:
                return
        elif self._peer.is_lagging:
            self._sync().receive_newer(batch.last)
        else:
            self._sync().receive_notice(batch.entries)
        self._next_seq = 0
        self._wake.set()

    def _sync(self) -> s.Subscription:
        """The machine, once it knows what was sent past it."""
        if (sent := self._sent) is not None:
            self._sent = None
            self._machine.sent_now(sent.last, sent.ending)
        return self._machine

    def receive_head(self, head: Cursor) -> None:
        """See `hub.Follower`."""
        if head != self.position:
            self._sync().receive_head(head)
            self._next_seq = 0
            self._wake.set()

    async def run_to_end(self) -> None:
        """Serves the subscription until it is over. Raises `ProblemError` and what the store raises at first."""
        judged: Credential | None = None
        while judged is not self._credential:  # a newer one may come while the store is asked
            judged = self._credential
            caller, standing = await self._services.judge(judged, self.run)
            self._become(caller, standing.version)
        services = self._services
        services.metrics.subscribed()
        services.guard.add(self.run, self)
        try:
            await self._watch()
        finally:
            services.guard.remove(self.run, self)
            services.metrics.unsubscribed()
        if self._ended_by is not None:
            await self._peer.send(f.Unsubscribed(self.run, self._ended_by, retry_ms=self._retry_ms))

    async def _watch(self) -> None:
        hub = self._services.hub
        await hub.follow(self.run, self)
        if self._texts is not None:
            hub.follow_text(self.run, self._texts)
        try:
            while not self._is_over:
                self._wake.clear()
                while (action := await self._next_action()) is not None:
                    await self._do(action)
                if not self._is_over:
                    await self._rest()
        finally:
            if self._texts is not None:
                hub.unfollow_text(self.run, self._texts)
            self._is_idle = False
            self._next_seq = 0
            await hub.unfollow(self.run, self)

    def _write_text(self, wire: bytes) -> bool:
        """Writes unfinished text at once, where nothing else is on its way; whether it did."""
        if not self._is_idle or not self._machine.is_live or not self._peer.write(wire):
            return False
        self._services.metrics.deltas += 1
        return True

    async def _send_text(self) -> bool:
        """Sends some unfinished text, if there is any; whether it did."""
        if self._texts is None or not self._machine.is_live:
            return False
        if (frame := await self._texts.next_frame()) is None:
            return False
        if not self._was_ended():
            self._services.metrics.deltas += 1
            await self._peer.send(frame)
        return True

    async def _rest(self) -> None:
        """Sends some unfinished text, or waits for news; meanwhile what comes next may be written past this task."""
        if await self._send_text():
            return
        self._is_idle = True
        self._next_seq = self._machine.next_at_once()
        try:
            if self._texts is None or (wait_s := self._texts.wait_s()) is None:
                await self._wake.wait()
            else:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._wake.wait()
        finally:
            self._is_idle = False
            self._next_seq = 0
            self._sync()

    async def _next_action(self) -> s.Action | None:
        """What to do next, once the peer does not lag; before long a peer that does holds nothing but its position."""
        if self._peer.is_lagging:
            hub = self._services.hub
            hub.rest(self.run, self)
            try:
                await self._until_ready()
            finally:
                hub.back(self.run, self)
        return None if self._was_ended() else self._machine.next_action()

    async def _until_ready(self) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._peer.ready()
        except TimeoutError:
            self._machine.set_aside()
            await self._peer.ready()

    @property
    def _is_over(self) -> bool:
        return self._machine.is_over or self._was_ended()

    def _was_ended(self) -> bool:
        return self._ended_by is not None

    async def _do(self, action: s.Action) -> None:
        logs = self._services.logs
        try:
            match action:
                case s.Load():
                    head = self._services.hub.head_of(self.run)
                    known = action.heard or None if head is None else max(action.heard, head.seq)
                    self._loaded = loaded = await self._waited(lambda: logs.load(self.run, heard=known))
                    ended = loaded.run.status if loaded.run.is_terminal else None
                    self._machine.receive_loaded(loaded.cursor, ended)
                    return
                case s.Read():
                    await self._read(action)
                    return
                case _:
                    await self._say(action)
        except NoRun:
            if not self._was_told:
                raise
            await self._peer.lose_place()
        except RunGone:
            if not self._was_told:
                raise
            self._end_purged()

    async def _read(self, action: s.Read) -> None:
        """A page of the log. Stored events wait for those of who is pressed less, and are given up before others."""
        logs, admission = self._services.logs, self._services.admission
        if self._was_told and not self._machine.is_live:
            owed_bytes, self._owed_bytes = self._owed_bytes, 0
            try:
                await admission.replay(self._who, owed_bytes)
            except Shed as shed:
                self._retry_ms = shed.retry_ms
                self._end("shed")
                return
        async with nullcontext() if self._machine.is_live else admission.reading():
            if await self._replay(action):
                return
            after, limit, heard = action.after, action.limit, action.heard
            page = await self._waited(lambda: logs.read_log(self.run, after, limit=limit, heard=heard))
        self._owed_bytes += sum(len(entry.raw) for entry in page.entries)
        self._machine.receive_page(page)

    async def _replay(self, action: s.Read) -> bool:
        """Answers a read with stored frames, made once for all of a class, if there are such; whether it did."""
        machine, after, reader = self._machine, action.after, self._reader
        if machine.is_live or action.heard == s.ANEW or not self._peer.takes_wires:
            return False
        framed = await self._waited(lambda: self._services.logs.framed(self.run, after, reader))
        if framed is None:
            return False
        if machine.is_judging:  # the cursor is good; what follows is fetched once the client was told so
            machine.receive_page(LogPage("ok", (), framed.head, framed.first_seq, framed.sealed))
            return True
        if not machine.may_send_stored(framed.frames[0].last.seq):
            return False
        for frame in framed.frames:
            is_allowed = self._reader == reader and not self._was_ended()
            if not (is_allowed and machine.may_send_stored(frame.last.seq) and self._peer.write(frame.wire)):
                break
            machine.sent_stored(frame.last, frame.ending)
            self._owed_bytes += len(frame.wire)
            self._services.metrics.sent(frame.count, replay=True)
            if self._texts is not None:
                self._texts.receive_sent(frame.finishing)
        self.is_quiet = False
        return True

    async def _say(self, action: s.Action) -> None:
        caller = self._caller
        assert caller is not None
        if self._was_ended():
            return
        self.is_quiet = False
        match action:
            case s.SendSubscribed():
                await self._peer.send(await self._subscribed(action, caller))
                self._was_told = True
            case s.SendEvents():
                for entries in [[e] for e in action.entries] if self._one_event_a_frame else [action.entries]:
                    if self._was_ended():
                        return
                    if self._texts is not None:
                        self._texts.receive_sent(entries)
                    self._services.metrics.sent(len(entries), replay=action.replay)
                    await self._send_events(entries, replay=action.replay)
            case s.SendLive():
                await self._peer.send(f.Live(self.run, str(action.cursor)))
            case s.SendEnd():
                await self._peer.send(f.End(self.run, str(action.cursor), action.status))
            case s.Refuse():
                raise ProblemError(action.problem)
            case s.LosePlace():
                await self._peer.lose_place()
            case s.Load() | s.Read():
                raise AssertionError("answered by _do")
            case _:
                assert_never(action)

    async def _send_events(self, entries: Sequence[Entry], *, replay: bool) -> None:
        reader, peer = self._reader, self._peer
        if peer.takes_wires and peer.write(self._services.logs.shared.wire(self.run, entries, reader, replay=replay)):
            return
        raw = [project_entry(entry, reader) for entry in entries]
        await peer.send(f.events(self.run, raw, entries[-1].cursor, replay=replay))

    async def _subscribed(self, action: s.SendSubscribed, caller: Caller) -> f.Subscribed:
        loaded, self._loaded = self._loaded, None
        assert loaded is not None
        projection = await self._services.project(loaded, caller)
        return s.subscribed(self._frame.id, self.run, action, projection)

    async def _waited(self, call: Callable[[], Awaitable[T]]) -> T:
        """The answer of `call`; a store that is away is asked again, once the client knows where it stands."""
        return await call() if not self._was_told else await when_back(call)
