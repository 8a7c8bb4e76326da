"""One seeded walk: virtual workers, gateways, readers and sweepers against a real server, with everything going wrong.

The interleaving unit is one script call. Replies get lost (and the call repeated, with others in between), calls fail
before or after they happened, workers die or come back from the dead, the clock jumps. Every execution is held
against `Oracle`; when the walk ends, all heals and the oracles of the whole store are asked. A failing seed is in the
message; `Walk(lab, seed)` replays it.
"""

import hashlib
import random
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Literal

import msgspec

from tests.model.protocol.store_oracle import Oracle
from tests.support.lab import AGENT, QUEUE, WORKFLOW, Lab, ending, note
from towline.protocol import event_data as d
from towline.protocol import values as v
from towline.protocol.codec import NewEntry
from towline.protocol.cursor import START, Cursor
from towline.protocol.ids import partition_of
from towline.protocol.limits import LEASE_MS
from towline.protocol.store import api
from towline.protocol.store.closing import force_close
from towline.protocol.store.keys import CONSUMER, GROUP, PartitionKeys
from towline.protocol.store.scripts import Script, compile_script
from towline.protocol.store.sweep import Sweeper, has_come

PARTITION = 5
RUNS = [name for name in (f"r{n}" for n in range(2000)) if partition_of(name) == PARTITION][:3]
FIRST, LATER = RUNS[1:]
"""Two of one thread: one that begins it, and one with a time to start, when it joins the thread."""
THREAD = "alice|t"
START_MS = 1_760_000_000_000
FROZEN = ("local time = redis.call('TIME')", "local time = {'0', '0'}")
BLOCKER = v.Blocker(id="b", kind="poison", title="t", since="", by="system", stops=True, remedies=[])

Patch = Callable[[str, str], str]
"""(script, text) → text: a safeguard removed."""


class Held:
    """A lease as its holder knows it. `pending` is a commit whose outcome it never learned."""

    def __init__(self, lease: api.Claimed) -> None:
        self.lease = lease
        self.number = 0
        self.read_to = START
        self.seen = START
        self.open: list[str] = []
        self.pending: tuple[str, api.Commit] | None = None
        self.is_sending = False


class Walk:
    """See the module."""

    def __init__(self, lab: Lab, seed: int, patch: Patch | None = None) -> None:
        self.lab, self.store, self.random = lab, lab.store, random.Random(seed)
        self.oracle = Oracle()
        self.held: list[Held] = []
        self.acked: set[str] = set()
        self.sent: set[str] = set()
        self.cursors: dict[str, Cursor] = dict.fromkeys(RUNS, START)
        self.read: dict[str, list[bytes]] = {run: [] for run in RUNS}
        self.depth = 0
        self.faults = True
        self._install(patch)

    # --- the store under the walk's hand ---

    def _install(self, patch: Patch | None) -> None:
        scripts: Any = self.store._scripts
        compiled: dict[tuple[str, bool], Script] = {}

        def script(name: str, relief: bool) -> Script:
            if (name, relief) not in compiled:
                made = compile_script(name, relief=relief)
                assert FROZEN[0] in made.text
                text = made.text.replace(*FROZEN)
                text = patch(name, text) if patch is not None else text
                compiled[name, relief] = Script(name, text, hashlib.sha1(text.encode()).hexdigest())
            return compiled[name, relief]

        scripts._script = script
        real = type(scripts).call

        async def call(name: str, keys: Sequence[str], request: dict[str, Any], *, relief: bool = True) -> list[Any]:
            async def execute() -> list[Any]:
                reply: list[Any] = await real(scripts, name, keys, request, relief=relief)
                self.oracle.check(name, request, reply)
                return reply

            fate = self.random.random() if self.faults else 1.0
            if fate < 0.03:
                raise api.StoreUnavailable("the call never arrived")
            # A forced close is prepared from a read, and rare: what lies between is worth more looks.
            if fate > (0.3 if request.get("forced") else 0.85):
                await self.others()
            reply = await execute()
            if fate < 0.06:
                raise api.StoreUnavailable("the reply got lost")
            if fate < 0.16:
                await self.others()
                reply = await execute()
            return reply

        scripts.call = call
        store: Any = self.store
        store.now_ms = lambda: self.oracle.now

        async def sync_clock() -> int:
            return self.oracle.now

        store.sync_clock = sync_clock

    async def set_clock(self, now: int) -> None:
        self.oracle.now = now
        await self.lab.raw.hset(PartitionKeys.of(PARTITION).meta, "clock_offset_ms", str(now))

    async def others(self) -> None:
        """What others do between two moments of one caller."""
        if self.faults and self.depth < 2:
            for _ in range(self.random.randrange(4)):
                await self.step()

    # --- what may happen ---

    async def step(self) -> None:
        self.depth += 1
        try:
            steps = [
                (self.create, 0.4), (self.signal, 3), (self.cancel, 0.25), (self.vote, 1), (self.claim, 3),
                (self.follow_hints, 2), (self.look, 5), (self.commit, 6), (self.rest, 2), (self.finish, 0.5),
                (self.renew, 2), (self.die, 0.5), (self.time, 2), (self.sweep, 2), (self.subscribe, 3),
                (self.stray, 0.7), (self.forget_scripts, 0.1), (self.close_from_outside, 0.3),
                (self.start_early, 0.3),
            ]  # fmt: skip
            chosen = self.random.choices([s for s, _ in steps], [w for _, w in steps])[0]
            with suppress(api.StoreUnavailable):
                await chosen()
        finally:
            self.depth -= 1

    def run_name(self) -> str:
        return self.random.choice(RUNS)

    async def create(self) -> None:
        """Also again, under another nonce: it answers the run that is there."""
        await self.make(self.random.choice(RUNS))

    async def make(self, run: str) -> None:
        start_ms = START_MS + 15_000 if run == LATER else 0
        with suppress(api.Changed):
            await self.lab.create(run, start_ms=start_ms, thread=THREAD if run in (FIRST, LATER) else "")

    async def signal(self) -> None:
        run, command = self.run_name(), f"c{self.random.randrange(40)}"
        try:
            answer = await self.lab.accept(run, command)
        except api.RunClosed:
            return
        if isinstance(answer, api.Accepted):
            self.acked.add(f"{run} {command}")

    async def cancel(self) -> None:
        run = self.run_name()
        command, deadline = f"x{self.random.randrange(9)}", self.oracle.now + self.random.choice([0, 5000, 30_000])
        data = d.CancelRequested(command_id=command, by="user:alice", deadline="")
        entry = NewEntry("cancel.requested", AGENT, data, is_input=True)
        try:
            await self.lab.accept(run, command, entries=[entry], counts=False, deadline_ms=deadline, type="cancel")
        except api.RunClosed:
            return

    async def vote(self) -> None:
        run = self.run_name()
        version = (await self.store.side_fields(run, ["v|q"])).get("v|q", "")
        if self.random.random() < 0.2:
            version += "?"
        try:
            await self.lab.accept(
                run, f"v{self.random.randrange(20)}", entries=[note("vote")], input_index=-1, counts=False,
                relies={"v|q": version}, side={"v|q": str(int(version.rstrip("?") or 0) + 1)},
            )  # fmt: skip
        except (api.Changed, api.RunClosed):
            return

    async def claim(self, run: str | None = None) -> None:
        holder = f"w{self.random.randrange(3)}"
        lease = await self.lab.try_claim(run or self.run_name(), holder)
        if isinstance(lease, api.Claimed):
            self.held.append(Held(lease))

    async def follow_hints(self) -> None:
        for run in await self.hints():
            if self.random.random() < 0.7:
                await self.claim(run)

    async def hints(self) -> list[str]:
        """Undelivered hints, without waiting for any."""
        key = PartitionKeys.of(PARTITION).commands(QUEUE)
        answer = await self.lab.raw.xreadgroup(GROUP, CONSUMER, {key: ">"}, count=100, noack=True)
        return [fields[b"run"].decode() for _, entries in answer for _, fields in entries]

    async def look(self, held: Held | None = None) -> None:
        """A holder reads on and feeds what it finds."""
        held = held or self.one_held()
        if held is None:
            return
        page = await self.store.read_log(held.lease.run, held.read_to, limit=50)
        assert page.recovery == "ok"
        for entry in page.entries:
            held.read_to = entry.cursor
            event = entry.event()
            if entry.meta.is_input or entry.seq == 1:
                held.seen = entry.cursor
            if event.type == "command.received":
                held.open.append(event.data["command_id"])
            if event.type in ("command.applied", "command.rejected") and event.data["command_id"] in held.open:
                held.open.remove(event.data["command_id"])

    def one_held(self) -> Held | None:
        """A holder with no commit in flight: there is only ever one."""
        free = [held for held in self.held if not held.is_sending]
        return self.random.choice(free) if free else None

    def _prepared(self, held: Held, *entries: NewEntry, **members: Any) -> api.Commit:
        return self.lab.commit(held.lease, held.number + 1, *entries, seen=held.seen, **members)

    async def _send(self, held: Held, kind: str, commit: api.Commit) -> api.Committed | None:
        """Sends a commit, or the one whose outcome is unknown, and drops the lease when it is over."""
        if held.pending is not None:
            kind, commit = held.pending
        held.pending = (kind, commit)
        texts = {e.data.text for e in commit.entries if isinstance(e.data, d.ProgressNoted)}
        self.sent |= texts
        held.is_sending = True
        try:
            if kind == "commit":
                done = await self.store.commit(commit)
            elif kind == "close":
                done = await self.store.close(commit)
            else:
                to: Any = kind
                done = await self.store.release(commit, to)
        except (api.Fenced, api.RunClosed, api.Diverged):
            held.pending = None
            if held in self.held and self.random.random() < 0.8:
                self.held.remove(held)
            return None
        except api.Unseen:
            held.pending = None
            return None
        finally:
            held.is_sending = False
        held.pending = None
        held.number = commit.number
        held.open = [c for c in held.open if c not in {o.command_id for o in commit.outcomes}]
        self.acked |= texts
        if kind != "commit" and held in self.held and self.random.random() < 0.8:
            self.held.remove(held)
        return done

    async def commit(self) -> None:
        held = self.one_held()
        if held is None or held.seen == START:
            return
        entries = [note(secrets.token_hex(6)) for _ in range(self.random.randrange(3))]
        members: dict[str, Any] = {"recorded": self.random.random() < 0.3}
        if self.random.random() < 0.3:
            members["arm"] = [api.Timer("timer", f"t{self.random.randrange(3)}", self.oracle.now + 3000)]
        if self.random.random() < 0.1:
            members["disarm"] = [api.Timer("timer", f"t{self.random.randrange(3)}")]
        if held.open and self.random.random() < 0.6:
            command = held.open[0]
            entries.append(
                NewEntry("command.applied", AGENT, d.CommandApplied(command_id=command, type="signal", effect="ok"))
            )
            members["outcomes"] = [api.CommandOutcome("alice", command, '{"status":"applied"}')]
            members["applied"] = 1
        if self.random.random() < 0.1:
            run = (await self.store.load(held.lease.run)).run
            members["snapshot"] = run
        await self._send(held, "commit", self._prepared(held, *entries, **members))

    async def rest(self) -> None:
        held = self.one_held()
        if held is None or held.seen == START:
            return
        endings: list[Literal["waiting", "blocked", "hand_over"]] = ["waiting", "hand_over", "blocked"]
        to = self.random.choices(endings, [6, 3, 0.5])[0]
        entries = {
            "waiting": [NewEntry("run.waiting", AGENT, d.RunWaiting(on=[]))],
            "blocked": [NewEntry("run.blocked", AGENT, d.RunBlocked(blocker=BLOCKER))],
            "hand_over": [],
        }[to]
        await self._send(held, to, self._prepared(held, *entries))

    async def finish(self) -> None:
        held = self.one_held()
        if held is not None and held.seen != START:
            await self._send(held, "close", self._prepared(held, note(secrets.token_hex(6)), ending()))

    async def renew(self) -> None:
        if self.held:
            await self.store.renew([api.Lease(h.lease.run, h.lease.fence) for h in self.held])

    async def die(self) -> None:
        if self.held:
            self.held.remove(self.random.choice(self.held))

    async def time(self) -> None:
        by = self.random.choices([500, 2500, LEASE_MS + 1, -3_600_000, 3_600_000], [6, 4, 4, 0.3, 0.3])[0]
        await self.set_clock(self.oracle.now + by)

    async def sweep(self) -> None:
        await Sweeper(self.store, self.random.choice("ab")).run_once()

    async def subscribe(self) -> None:
        """A reader goes on from its cursor; now and then with another run's, which must not pass."""
        run = self.run_name()
        page = await self.store.read_log(run, self.cursors[run], limit=self.random.randrange(1, 9))
        assert page.recovery == "ok", page
        if page.entries:
            self.read[run] += [e.raw for e in page.entries]
            self.cursors[run] = page.entries[-1].cursor
        if self.cursors[run].tag is not None:
            forged = Cursor(self.cursors[run].seq, (self.cursors[run].tag or 0) ^ 1)
            assert (await self.store.read_log(run, forged, limit=5)).recovery == "diverged"

    async def stray(self) -> None:
        """A holder of a past life: its `seen` stands in no log, or its number is not the next."""
        held = self.one_held()
        if held is None or held.seen == START or held.pending is not None:
            return
        forged = Cursor(held.seen.seq, (held.seen.tag or 0) ^ 1)
        wrongs: list[dict[str, Any]] = [{"seen": forged}, {"number": held.number + 2}]
        wrong = self.random.choice(wrongs)
        held.is_sending = True
        try:
            await self.store.commit(msgspec.structs.replace(self._prepared(held, note("stray")), **wrong))
        except (api.Diverged, api.Fenced, api.RunClosed):
            return
        finally:
            held.is_sending = False
        raise AssertionError("a stray commit was taken")

    async def close_from_outside(self) -> None:
        """A closer, or one that dies before it closed, on a run whose cancel perhaps nobody asked for."""
        if self.random.random() < 0.5:
            await force_close(self.store, self.run_name(), holder="closer")
        else:
            await self.lab.try_claim(self.run_name(), "closer", closing=True)

    async def start_early(self) -> None:
        """A sweeper that takes no look at the clock."""
        await self.store.start_due(LATER, QUEUE, has_come)

    async def forget_scripts(self) -> None:
        await self.lab.raw.script_flush()

    # --- the walk and its end ---

    async def go(self, steps: int) -> None:
        """The whole walk. Raises `AssertionError` for whatever an oracle finds."""
        await self.lab.raw.flushall()
        await self.store._initialise(True)
        await self.set_clock(START_MS)
        await self.lab.store._dispatch._announce("w0", [WORKFLOW], START_MS)
        await self.store._dispatch._make_queue(QUEUE)
        self.store._dispatch._spare.clear()
        self.faults = False
        for run in RUNS:
            await self.make(run)
        self.faults = True
        for _ in range(steps):
            await self.step()
            await self.census()

    async def census(self) -> None:
        """Nobody is forgotten: every open run is held, claimable, timed, or waits and has seen all there is."""
        for name, run in self.oracle.runs.items():
            timed = any(member.endswith("|" + name) for member in self.oracle.timers)
            waits = run.lease_until == 0 and (run.blocked or run.rested_at >= run.input_seq)
            waits = waits or self.oracle.waits_in_thread(name)
            assert run.sealed or name in self.oracle.leases or timed or waits, f"{name} is forgotten"
