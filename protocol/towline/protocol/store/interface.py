"""What may happen to a log: the calls of a store as gateway and workers see them.

Promises what `api` promises, whatever implements it; `redis.RedisStore` does. Methods raise `StoreUnavailable`
besides what they name. What one of them does is written here and nowhere else.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Literal, Protocol

from towline.protocol.cursor import Cursor
from towline.protocol.deltas import Piece
from towline.protocol.store.api import (
    Acceptance,
    Accepted,
    AccessChange,
    Announced,
    Claimed,
    Commit,
    Committed,
    Created,
    Fence,
    Flooded,
    Hint,
    Lease,
    Loaded,
    LogPage,
    NewRun,
    NotClaimed,
    Notice,
    Renewal,
    Repeated,
    RunFacts,
    Standing,
    WorkflowInfo,
)


class Store(Protocol):
    """The log."""

    def now_ms(self) -> int:
        """Estimate of the store's clock, never behind it by more than a round trip; see `sync_clock`."""
        ...

    async def sync_clock(self) -> int: ...

    async def create_run(self, new: NewRun) -> Created | Flooded:
        """Creates the run and its start in one step; `Flooded` if its thread is full.

        Raises `StoreFull`, `RunGone`, `Reserved`, and `Changed` if its thread is another than it was.
        """
        ...

    async def accept(self, acceptance: Acceptance) -> Accepted | Repeated | Flooded:
        """Accepts a command. Raises `NoRun`, `RunClosed`, `Changed`, `StoreFull`."""
        ...

    async def command_outcome(self, run: str, subject: str, command_id: str) -> Repeated | None: ...

    async def claim(
        self, run: str, *, nonce: str, holder: str, version: str, ttl_ms: int, closing: bool = False
    ) -> Claimed | NotClaimed: ...

    async def renew(self, leases: Sequence[Lease], *, ttl_ms: int) -> Sequence[Renewal]: ...

    async def commit(self, commit: Commit) -> Committed:
        """`Committed.held` if the run is paused and the commit starts something.

        Raises `NoRun`, `RunClosed`, `Fenced`, `Diverged`.
        """
        ...

    async def release(self, commit: Commit, to: Literal["waiting", "blocked", "paused", "hand_over"]) -> Committed:
        """A last commit that gives the lease back.

        Raises as `commit`, `Unseen` for waiting, and `Changed` for paused when the pause was taken back.
        """
        ...

    async def close(self, commit: Commit, *, prepared_at: int | None = None) -> Committed:
        """The terminal commit. Raises as `commit`, and `Unseen`; with `prepared_at` (a forced close) `Changed`."""
        ...

    async def read_log(self, run: str, after: Cursor, *, limit: int, private: bool = False) -> LogPage:
        """Up to `limit` entries after a cursor, with their private parts on demand. Raises `NoRun`, `RunGone`."""
        ...

    async def load(self, run: str) -> Loaded:
        """Raises `NoRun`, `RunGone`."""
        ...

    async def facts(self, run: str) -> RunFacts:
        """Raises `NoRun`, `RunGone`."""
        ...

    async def side_fields(self, run: str, fields: Sequence[str]) -> dict[str, str]:
        """The named fields of the run's side hash; absent ones are left out."""
        ...

    async def side_matching(self, run: str, prefix: str) -> dict[str, str]:
        """All fields of the side hash whose name begins with `prefix`."""
        ...

    async def heads(self, runs: Sequence[str]) -> dict[str, Cursor]:
        """The newest position of each run that exists."""
        ...

    async def list_runs(self, *prefixes: str, before: str | None, limit: int) -> Sequence[tuple[str, str]]:
        """Newest first: (position, run id) strictly before a position.

        Prefixes: `a|` all, `r|<subject>|` own and granted to the subject, `rg|<group>|` granted to a group.
        """
        ...

    async def standing(self, run: str, fields: Sequence[str]) -> Standing:
        """What decides access to a run, read at once. Raises `NoRun`, `RunGone`."""
        ...

    async def access_versions(self, runs: Sequence[str]) -> dict[str, str]:
        """The version of each run's access; '' where it never changed."""
        ...

    async def change_access(self, change: AccessChange) -> None:
        """Changes grants or shares, with their event. Raises `NoRun`, `RunGone`, `Changed`, `StoreFull`."""
        ...

    async def keep_ticket(self, digest: str, text: str, ttl_ms: int) -> None: ...

    async def ticket(self, digest: str, *, spend: bool) -> str | None:
        """What was kept under the digest of a ticket; with `spend` nobody gets it again."""
        ...

    async def publish_pieces(
        self, run: str, fence: Fence, pieces: Sequence[Piece], texts: Sequence[Piece] = ()
    ) -> None:
        """Publishes unfinished text, and keeps texts so far. Raises `NoRun`, `RunClosed`, `Fenced`, `StoreFull`."""
        ...

    async def forget_texts(self, run: str, messages: Sequence[str]) -> None:
        """Drops the kept texts of finished messages."""
        ...

    async def unfinished(self, run: str) -> Sequence[Piece]:
        """The text so far of each message that the log does not show as finished. Raises `NoRun`, `RunGone`."""
        ...

    async def announce(self, worker: str, workflows: Sequence[WorkflowInfo]) -> None: ...

    async def announced(self) -> Sequence[Announced]: ...

    async def read_hints(self, queue: str, *, count: int, block_ms: int) -> Sequence[Hint]:
        """Up to `count` undelivered hints; waits at most `block_ms`. Never acknowledged: the lease is that."""
        ...

    async def return_hint(self, queue: str, hint: Hint) -> None:
        """Hands on a hint that its reader cannot take (another version), to whoever waits; bounded."""
        ...

    def notices(self) -> "NoticeReader": ...


class NoticeReader(Protocol):
    """A stream of notices for the runs that are followed. A lost connection yields `None` once it is back."""

    async def follow(self, run: str) -> None: ...

    async def unfollow(self, run: str) -> None: ...

    def __aiter__(self) -> AsyncIterator[Notice | None]: ...

    async def aclose(self) -> None: ...
