"""What a store takes and gives, and what it raises: values and errors.

Promises, whatever implements it:

- a call that returned has happened, once, and survives the death of every process (and, with the default
  `appendfsync always`, a power cut); a call that raised `StoreUnavailable` may or may not have happened, and the
  same call with the same nonce or commit number answers as if it were the first;
- entries of one run are dense in seq, in one order, and a sealed log never grows;
- nothing is written by a lease holder whose fence is no longer the run's.

Leaves to callers: rights, what an entry says, and reading again after `Changed`. The calls stand in `interface`,
the implementation in `redis`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from towline.protocol.codec import Entry, NewEntry
from towline.protocol.cursor import Cursor
from towline.protocol.deltas import Piece
from towline.protocol.run_state import Run
from towline.protocol.store import failures
from towline.protocol.values import OnBusy

Changed = failures.Changed
Diverged = failures.Diverged
Fenced = failures.Fenced
NoRun = failures.NoRun
Reserved = failures.Reserved
RunClosed = failures.RunClosed
RunGone = failures.RunGone
StoreError = failures.StoreError
StoreFull = failures.StoreFull
StoreUnavailable = failures.StoreUnavailable
TestOnly = failures.TestOnly
Unseen = failures.Unseen


class Fence(Struct, frozen=True):
    """Proof of holding a lease: the pair that the newest claim drew."""

    epoch: int
    nonce: str


class NewRun(Struct, frozen=True):
    """A run to create. `fingerprint` stands for workflow and input: a repeat must have the same.

    `side`: fields of its side hash from the start. `listed`: further prefixes of the index under which it stands.
    `start_ms`: when it may start, 0 for now. `retain_ms`: how long it stays after its end before it may be archived.
    `command` is accepted in the same step. `thread`: the field of its thread (`threads.thread_field`); `behind`: the
    last run of it as it was read; `interrupt`: a cancel of the first. `instead`: an id that was reserved under `run`,
    which nobody has.
    """

    run: str
    nonce: str
    fingerprint: str
    owner: str
    workflow: str
    version: str
    queue: str
    created: NewEntry
    side: Mapping[str, str] = {}
    listed: Sequence[str] = ()
    start_ms: int = 0
    retain_ms: int | None = None
    command: "Acceptance | None" = None
    thread: str = ""
    behind: str = ""
    interrupt: "Acceptance | None" = None
    instead: str = ""


class Created(Struct, frozen=True):
    """Where a run stands after `create_run`. `existing` is None for a new one."""

    cursor: Cursor
    existing: "Existing | None" = None


class Existing(Struct, frozen=True):
    """The run that had the id before: whose it is and what it was started with."""

    owner: str
    fingerprint: str


Pause = Literal["", "asked", "1"]
"""Where the pause of a run stands: none, accepted (a holder must come to rest), or at rest."""


class Acceptance(Struct, frozen=True, kw_only=True):
    """A command ready to be accepted, with what its preparation relied on.

    `relies`: fields of the run's side hash with the value they were read with ('' = absent). `input_index`: which
    entry (0-based) is the newest input, or -1. `outcome`: text of the receipt if the accepting step applies it.
    `inbox_add`, `inbox_remove`: as in `Commit`. `paused`: what becomes of the run's pause ('' leaves it, '-' takes it
    back), if it still is `was_paused` (None for any) and the lease still is, or is not, given out (`was_held`).
    """

    run: str
    nonce: str
    subject: str
    command_id: str
    fingerprint: str
    type: str
    queue: str
    entries: Sequence[NewEntry]
    relies: Mapping[str, str] = {}
    side: Mapping[str, str] = {}
    input_index: int = -1
    counts: bool = False
    outcome: str = ""
    deadline_ms: int | None = None
    relief: bool = True
    inbox_add: Mapping[str, Sequence[str]] = {}
    inbox_remove: Sequence[str] = ()
    paused: Literal["", "-", "asked", "1"] = ""
    was_paused: Pause | None = None
    was_held: bool | None = None


class Accepted(Struct, frozen=True):
    """An accepted command: its first entry's seq."""

    seq: int
    cursor: Cursor
    now_ms: int


class Repeated(Struct, frozen=True):
    """The id was used before. `outcome` is the text of the receipt's outcome, '' while it is open."""

    seq: int
    fingerprint: str
    type: str
    outcome: str


class Flooded(Struct, frozen=True):
    """Too many accepted commands wait to be applied."""

    unapplied: int


class Claimed(Struct, frozen=True):
    """A lease. `lapsed` names the holder whose lease ran out before ('' if none did).

    `is_poison`: so many holders died on this run that the lease is given only to park it.
    """

    run: str
    fence: Fence
    cursor: Cursor
    input_seq: int
    crashes: int
    lapsed: str
    lease_until_ms: int
    now_ms: int
    stopping_ms: int
    is_poison: bool = False


class NotClaimed(Struct, frozen=True):
    """Nobody may or need run it now. `retry_ms`: how long a live holder's lease lasts."""

    why: Literal["held", "parked", "closed", "no_run", "version"]
    retry_ms: int = 0
    version: str | None = None


class Renewal(Struct, frozen=True):
    """What came back for one lease: `lost` when it is no longer held."""

    run: str
    lost: Literal["fenced", "closed", "no_run"] | None
    input_seq: int = 0
    stopping_ms: int = 0


class Lease(Struct, frozen=True):
    """One held lease to renew. `step`: what the holder works on, for people."""

    run: str
    fence: Fence
    step: str = ""


TimerKind = Literal["timer", "retry"]


class Timer(Struct, frozen=True):
    """A due time of a run, by id. `retry` is the wait before an activity's next attempt."""

    kind: TimerKind
    id: str
    due_ms: int = 0


class CommandOutcome(Struct, frozen=True):
    """What became of an accepted command: text of its receipt, kept for repeats."""

    subject: str
    command_id: str
    receipt: str


class Before(Struct, frozen=True):
    """How much of each list of a commit stands before its first start."""

    entries: int
    arm: int = 0
    disarm: int = 0
    side: int = 0
    outcomes: int = 0
    inbox_add: int = 0
    inbox_remove: int = 0
    applied: int = 0


class Commit(Struct, frozen=True, kw_only=True):
    """One atomic write of a lease holder. `number` counts 1, 2, 3 … per claim.

    `seen`: the newest input that was fed to the machine when this was decided. `now_ms`: store time taken before
    the first result it carries was fed. `recorded`: it carries a result, so the run makes progress. `applied`: how
    many counted commands get their outcome here. `snapshot`: a fold of what the writer has read back.
    `inbox_add`: what begins to wait for people, with for whom (`user:…`, `group:…`, `role:…`); `inbox_remove`: what
    ends to. `before_starts` is given if the commit starts a step or a child: a paused run takes only what is before.
    """

    run: str
    queue: str
    fence: Fence
    number: int
    seen: Cursor
    now_ms: int
    entries: Sequence[NewEntry] = ()
    arm: Sequence[Timer] = ()
    disarm: Sequence[Timer] = ()
    side: Mapping[str, str] = {}
    outcomes: Sequence[CommandOutcome] = ()
    applied: int = 0
    recorded: bool = False
    snapshot: Run | None = None
    inbox_add: Mapping[str, Sequence[str]] = {}
    inbox_remove: Sequence[str] = ()
    before_starts: Before | None = None


class Committed(Struct, frozen=True):
    """Where the log stands. For no entries `first_seq` is `last_seq` + 1.

    `held`: the run is paused, so only so many entries were written, and what belongs to them.
    """

    first_seq: int
    cursor: Cursor
    now_ms: int
    input_seq: int
    held: int | None = None


class LogPage(Struct, frozen=True):
    """Entries after a cursor. `recovery` tells how the cursor's own entry compared with the log.

    `ok`: it stands there (or the cursor is the start, or unchecked). `ahead`: the log is shorter. `diverged`: another
    entry stands there. `trimmed`: the log begins later. Entries are empty unless `ok`.
    """

    recovery: Literal["ok", "ahead", "diverged", "trimmed"]
    entries: Sequence[Entry]
    head: Cursor
    first_seq: int
    sealed: bool


class RunFacts(Struct, frozen=True):
    """What the store knows of a run beside its log."""

    run: str
    owner: str
    workflow: str
    version: str
    queue: str
    fingerprint: str
    head: Cursor
    first_seq: int
    input_seq: int
    epoch: int
    holder: str
    lease_until_ms: int
    heartbeat_ms: int
    step: str
    crashes: int
    sealed: bool
    blocked: bool
    stopping_ms: int
    paused: Pause = ""


class Loaded(Struct, frozen=True):
    """A Run folded up to `cursor`, with the facts that were read just before."""

    run: Run
    cursor: Cursor
    facts: RunFacts


class Standing(Struct, frozen=True):
    """What decides access to a run: its facts, the asked fields of its side hash, and the version of its access.

    The version ('' at first) changes with each grant and share; whoever prepares a change relies on it.
    """

    facts: RunFacts
    fields: Mapping[str, str]
    version: str


class AccessChange(Struct, frozen=True, kw_only=True):
    """Grants or shares of a run to change, with the `version` of its access that this relied on.

    `entries` are written only while the log is open. `side` / `dropped`: fields of the side hash to write, and to
    take away. `listed` / `unlisted`: prefixes of the index under which the run is to stand, or not any more.
    `relief`: it passes when memory is full, as taking access away must.
    """

    run: str
    version: str
    entries: Sequence[NewEntry] = ()
    side: Mapping[str, str] = {}
    dropped: Sequence[str] = ()
    listed: Sequence[str] = ()
    unlisted: Sequence[str] = ()
    relief: bool = False


class Hint(Struct, frozen=True):
    """A disposable word that a run may need a worker. `returned`: how many readers could not take it."""

    run: str
    workflow: str
    version: str
    returned: int = 0


class WorkflowInfo(Struct, frozen=True, kw_only=True):
    """One version of a workflow, as a worker announces it."""

    name: str
    version: str
    queue: str
    input_schema: dict[str, Any]
    signals: dict[str, dict[str, Any]] = {}
    updates: list[str] = []
    queries: list[str] = []
    accepts: list[str] = []
    on_busy: OnBusy | None = None


class Announced(Struct, frozen=True):
    """A workflow version and when a worker last announced it (store time)."""

    workflow: WorkflowInfo
    worker: str
    at_ms: int


class Notice(Struct, frozen=True):
    """Entries that a script just appended to a run, or pieces of its unfinished text: never the truth."""

    run: str
    entries: Sequence[Entry]
    pieces: Sequence[Piece] = ()
