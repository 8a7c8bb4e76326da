"""One connection to the store that many callers share: their calls go out together, the answers come back in order.

Promises that each caller gets the answer of its own call or an error, within its deadline, whatever happens to the
connection or to other callers. The four rules that make it so:

1. Whatever was written is answered in the order of writing, so a call leaves `_sent` only when all its answers were
   read. A caller that gave up leaves its call there; the answer is read and dropped.
2. A call that nobody waits for any more and that was not written yet is never written.
3. When the connection is lost, all that is unanswered is written again, in its order, on the next one: nobody knows
   what the store did of it. So everything that comes here must be harmless to repeat, as every call of the store is
   (it reads, or carries a nonce or a commit number). After `_LOSSES` losses a call fails.
4. All calls have the same time. When it is over for the oldest one that was written, its connection is given up:
   an answer that comes later could no longer be matched.

What callers ask for within one turn of the event loop leaves in one write. Connecting, with credentials, TLS, unix
sockets, retries and their pace, is redis-py's. Not for calls that block or that change the connection (transactions,
subscriptions): these take a client of their own. Leaves commands to `multiplex`.
"""

import asyncio
import logging
from collections import deque
from itertools import chain
from typing import Any, Final, cast

import hiredis
from redis.asyncio.connection import AbstractConnection, DefaultParser
from redis.backoff import ExponentialWithJitterBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

_log: Final = logging.getLogger("towline.store")
_CLOSED: Final = "the connection was closed"
_LOSSES: Final = 3
_PACE: Final = ExponentialWithJitterBackoff(cap=0.5, base=0.02)
"""Between connections that brought no answer at all; redis-py paces its own attempts to connect."""
MAX_CALLS: Final = 2_000
"""Calls that may be unanswered by the store at once; who comes later is written later, within the same deadline."""
_READ_BYTES: Final = 65_536
_INCOMPLETE: Final = object()


class Call:
    """What one caller asked: one command, or a batch whose answers come one after the other."""

    __slots__ = ("answered", "answers", "deadline_s", "expected", "losses", "packed")

    def __init__(self, packed: bytes, expected: int, deadline_s: float, answered: "asyncio.Future[list[Any]]") -> None:
        self.packed = packed
        self.expected = expected
        self.deadline_s = deadline_s
        self.answered = answered
        self.answers: list[Any] = []
        self.losses = 0

    @property
    def is_over(self) -> bool:
        """Nobody waits for it: it was answered, it failed, or its caller gave up."""
        return self.answered.done()

    def fail(self, error: BaseException) -> None:
        if not self.answered.done():
            # One object for each: an error raised by many would gather the tracebacks of all.
            kind = RedisTimeoutError if isinstance(error, RedisTimeoutError) else RedisConnectionError
            failure = kind(str(error) or type(error).__name__)
            failure.__cause__ = error
            self.answered.set_exception(failure)


class Lane:
    """See the module. It connects when it is first asked, and again when it is asked after a loss.

    Args:
        connection: Not connected, without a `socket_timeout`: a lane that nobody uses is read for ever.
        timeout_s: How long a call may take in all, and how long connecting may.
    """

    def __init__(self, connection: AbstractConnection, *, timeout_s: float, max_calls: int = MAX_CALLS) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self._unsent: deque[Call] = deque()
        self._sent: deque[Call] = deque()
        self._max_calls = max_calls
        self._has_unsent = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._serving: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._fruitless = 0
        self._is_closed = False

    @property
    def in_flight(self) -> int:
        """Calls that were written and whose answers were not read yet."""
        return len(self._sent)

    async def ask(self, packed: bytes, expected: int = 1) -> list[Any]:
        """The `expected` answers to the packed commands; refusals stand among them as `ResponseError`.

        Raises redis-py's `ConnectionError` or `TimeoutError`: the store may or may not have done it.
        """
        if self._is_closed:
            raise RedisConnectionError(_CLOSED)
        loop = self._loop
        if self._serving is None or loop is None:
            loop = self._loop = asyncio.get_running_loop()  # a system call on Python 3.11
            self._serving = loop.create_task(self._serve(), name="towline-store-lane")
        deadline_s = loop.time() + self._timeout_s
        call = Call(packed, expected, deadline_s, loop.create_future())
        self._unsent.append(call)
        self._has_unsent.set()
        if self._timer is None:
            self._timer = loop.call_at(deadline_s, self._look_at_deadlines)
        return await call.answered

    async def aclose(self) -> None:
        """Closes the connection; who still waits gets `ConnectionError`."""
        self._is_closed = True
        self._fail_all(RedisConnectionError(_CLOSED))
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.wait({self._serving})
        if self._timer is not None:
            self._timer.cancel()
        await self._connection.disconnect()

    # --- one connection after the other

    async def _serve(self) -> None:
        try:
            while True:
                await self._has_unsent.wait()
                try:
                    async with asyncio.timeout(self._timeout_s):
                        await cast("Any", self._connection).connect()
                except TimeoutError:
                    await self._connection.disconnect(nowait=True)
                    self._fail_all(RedisTimeoutError(f"no connection within {self._timeout_s:g} s"))
                    continue
                except (RedisError, OSError) as error:
                    await self._connection.disconnect(nowait=True)
                    self._fail_all(error)
                    continue
                loss = await self._converse()
                await self._connection.disconnect(nowait=True)
                self._take_back(loss)
                if self._fruitless:
                    await asyncio.sleep(_PACE.compute(self._fruitless))
        except Exception:  # a mistake of ours: whoever waits must learn of it, and the next call starts anew
            _log.exception("a connection to the store failed")
        finally:
            self._serving = None
            self._fail_all(RedisConnectionError("the connection was lost"))
            await self._connection.disconnect(nowait=True)

    async def _converse(self) -> BaseException:
        """Writes and reads until the connection ends; why it ended."""
        self._fruitless += 1  # until an answer comes
        writing = asyncio.create_task(self._write())
        self._reading = reading = asyncio.create_task(self._read())
        try:
            await asyncio.wait({reading, writing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._reading = None
            reading.cancel()
            writing.cancel()
            ends = await asyncio.gather(reading, writing, return_exceptions=True)
        return next((end for end in ends if isinstance(end, Exception)), RedisTimeoutError(self._overdue()))

    async def _write(self) -> None:
        sent, unsent = self._sent, self._unsent
        while True:
            await self._has_unsent.wait()
            packed = list[bytes]()
            while unsent and len(sent) < self._max_calls:
                call = unsent.popleft()
                if not call.is_over:
                    sent.append(call)  # before the write: what fails half-way may have arrived
                    packed.append(call.packed)
            self._has_unsent.clear()  # what found no place is written when there is one: see `_read`
            if packed:
                await self._connection.send_packed_command(b"".join(packed), check_health=False)

    async def _read(self) -> None:
        # All answers of a packet are taken at once: redis-py's `read_response` costs more than the rest of a call.
        sent, stream = self._sent, cast("asyncio.StreamReader", cast("Any", self._connection)._reader)
        reader: Any = hiredis.Reader(
            protocolError=InvalidResponse, replyError=DefaultParser.parse_error, notEnoughData=_INCOMPLETE
        )
        while True:
            data = await stream.read(_READ_BYTES)
            if not data:
                raise RedisConnectionError("the store closed the connection")
            reader.feed(data)
            while (answer := reader.gets()) is not _INCOMPLETE:
                if not sent:
                    raise RedisConnectionError("the store said something that nobody asked")
                if isinstance(answer, RedisConnectionError):
                    raise answer  # it does not serve, as while it loads
                self._fruitless = 0
                call = sent[0]
                call.answers.append(answer)
                if len(call.answers) == call.expected:
                    sent.popleft()
                    if not call.answered.done():
                        call.answered.set_result(call.answers)
            if self._unsent:
                self._has_unsent.set()

    # --- what becomes of calls that were not answered

    def _take_back(self, loss: BaseException) -> None:
        """Queues what the lost connection left unanswered in front of what was not written yet."""
        again = list[Call]()
        for call in self._sent:
            call.losses += 1
            call.answers = []
            if call.losses > _LOSSES:
                call.fail(loss)
            if not call.is_over:
                again.append(call)
        self._sent.clear()
        self._unsent.extendleft(reversed(again))
        if self._unsent:
            self._has_unsent.set()

    def _fail_all(self, error: BaseException) -> None:
        for call in chain(self._sent, self._unsent):
            call.fail(error)
        self._sent.clear()
        self._unsent.clear()
        self._has_unsent.clear()

    def _look_at_deadlines(self) -> None:
        """Fails what is overdue; see rule 4. One timer serves all calls, since deadlines follow one another."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        next_s: float | None = None
        for call in chain(self._sent, self._unsent):
            if call.deadline_s > now_s:
                next_s = call.deadline_s
                break
            call.fail(RedisTimeoutError(self._overdue()))
        if self._sent and self._sent[0].deadline_s <= now_s and self._reading is not None:
            self._reading.cancel()
        while self._unsent and self._unsent[0].is_over:
            self._unsent.popleft()
        self._timer = None if next_s is None else loop.call_at(next_s, self._look_at_deadlines)

    def _overdue(self) -> str:
        return f"no answer within {self._timeout_s:g} s"
