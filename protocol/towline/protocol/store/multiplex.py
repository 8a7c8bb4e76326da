"""A redis-py client whose calls share two connections instead of taking one each from a pool.

Promises what `lane` promises, for every command and every `pipeline(transaction=False)` of `redis.asyncio.Redis`:
the callers of a hundred runs cost the store and this process a few packets instead of hundreds. Scripts go over one
connection and everything else over the other, so that no commit stands behind somebody's page of a log; calls of one
caller keep their order since it waits for each answer.

A transaction takes an ordinary connection of the pool. What blocks, subscribes or changes its connection is refused:
open a client of its own with `connection.open_client`.
"""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import hiredis
import redis.asyncio
from redis.asyncio.client import Pipeline
from redis.exceptions import ResponseError

from towline.protocol.store.lane import Lane

_SCRIPTS: Final = frozenset({"EVALSHA", "EVAL"})
_NOT_SHARED: Final = frozenset(
    {"AUTH", "BLMOVE", "BLMPOP", "BLPOP", "BRPOP", "BZMPOP", "BZPOPMAX", "BZPOPMIN", "CLIENT REPLY", "DISCARD", "EXEC"}
    | {"HELLO", "MONITOR", "MULTI", "PSUBSCRIBE", "QUIT", "RESET", "SELECT", "SSUBSCRIBE", "SUBSCRIBE", "UNWATCH"}
    | {"WAIT", "WAITAOF", "WATCH", "XREAD", "XREADGROUP"}
)

AS_IT_IS: Final[Mapping[str, Any]] = {"as_it_is": True}
"""Options of a command whose answer is not put into redis-py's shape, which costs more than reading a log."""


def packed(arguments: Sequence[Any]) -> bytes:
    """A command as it travels."""
    name = arguments[0]
    if " " in name:
        arguments = (*name.split(), *arguments[1:])
    return cast("bytes", hiredis.pack_command(tuple(arguments)))


class Multiplexed(redis.asyncio.Redis):
    """See the module. Made like its base class; `socket_timeout` is the time that a call may take in all."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._scripts: Lane | None = None
        self._others: Lane | None = None

    def _new_lane(self) -> Lane:
        pool = self.connection_pool
        settings: dict[str, Any] = {**pool.connection_kwargs, "socket_timeout": None}
        return Lane(pool.connection_class(**settings), timeout_s=pool.connection_kwargs["socket_timeout"])

    def lane_of(self, command: str) -> Lane:
        """The lane that `command` goes by. Raises ValueError for what cannot share one."""
        if command in _SCRIPTS:
            if self._scripts is None:
                self._scripts = self._new_lane()
            return self._scripts
        if command in _NOT_SHARED:
            raise ValueError(f"{command} needs a connection of its own")
        if self._others is None:
            self._others = self._new_lane()
        return self._others

    async def ask(self, commands: Sequence[bytes]) -> list[Any]:
        """Commands that were `packed` before, in one batch; their answers, as they are. Raises the first refusal."""
        answers = await self.lane_of("PING").ask(b"".join(commands), len(commands)) if commands else []
        for answer in answers:
            if isinstance(answer, ResponseError):
                raise answer
        return answers

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """See `redis.asyncio.Redis.execute_command`."""
        [answer] = await self.lane_of(args[0]).ask(packed(args))
        if isinstance(answer, ResponseError):
            raise answer
        return await understood(self.response_callbacks, args[0], answer, options)

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> Pipeline:
        """See `redis.asyncio.Redis.pipeline`. Without a transaction it is a batch of the lane, written as a whole."""
        if transaction:
            return super().pipeline(True, shard_hint)
        return Batch(self, shard_hint)

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        """Closes lanes and pool."""
        for lane in (self._scripts, self._others):
            if lane is not None:
                await lane.aclose()
        await super().aclose(close_connection_pool)


class Batch(Pipeline):
    """Commands that leave together and are answered in their order, with other callers' around them, not between."""

    def __init__(self, client: Multiplexed, shard_hint: str | None) -> None:
        super().__init__(client.connection_pool, client.response_callbacks, False, shard_hint)
        self._multiplexed = client

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        """See `redis.asyncio.client.Pipeline.execute`."""
        commands = self.command_stack
        if self.watching or self.explicit_transaction or self.scripts:
            return await super().execute(raise_on_error)
        if not commands:
            return []
        try:
            lanes = {self._multiplexed.lane_of(cast("str", args[0])) for args, _ in commands}
            joined = b"".join([packed(args) for args, _ in commands])
            # One lane keeps the order; scripts among other commands then travel with these.
            lane = lanes.pop() if len(lanes) == 1 else self._multiplexed.lane_of("PING")
            answers = await lane.ask(joined, len(commands))
            if raise_on_error:
                self.raise_first_error(commands, answers)
            return [
                answer
                if isinstance(answer, ResponseError)
                else await understood(self.response_callbacks, cast("str", args[0]), answer, options)
                for (args, options), answer in zip(commands, answers, strict=True)
            ]
        finally:
            await cast("Any", self).reset()


async def understood(callbacks: Mapping[Any, Any], command: str, answer: Any, options: Mapping[str, Any]) -> Any:
    """The answer as redis-py's callback for `command` reads it, unless the caller wants it `AS_IT_IS`."""
    callback = callbacks.get(command)
    if callback is None or options == AS_IT_IS:
        return answer
    options = {name: value for name, value in options.items() if name != "keys"}  # redis-py's cache wants it, we do not
    read = callback(answer, **options)
    return await read if inspect.isawaitable(read) else read
