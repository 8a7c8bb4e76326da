"""What must hold after a walk: all heals, each log is what the oracle says, and nothing is left behind.

The oracles of the whole store, asked once: contiguity, one terminal entry and it last, blocks of fences that do not
interleave, nothing acknowledged lost or doubled, readers that saw the log, snapshots that equal it, clean sets.
"""

import msgspec

from tests.model.protocol.store_walk import PARTITION, Held, Patch, Walk
from tests.support.lab import QUEUE, Lab, ending
from towline.protocol.events import TERMINAL
from towline.protocol.run import fold_all
from towline.protocol.store import api
from towline.protocol.store.keys import PartitionKeys, RunKeys
from towline.protocol.store.sweep import Sweeper


async def walk_and_judge(lab: Lab, seed: int, steps: int, patch: Patch | None = None) -> Walk:
    """One whole walk. Raises `AssertionError` with the seed for whatever an oracle finds."""
    walk = Walk(lab, seed, patch)
    try:
        await walk.go(steps)
        await heal(walk)
        await judge(walk)
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error
    return walk


async def heal(walk: Walk) -> None:
    """One good worker that only follows hints, and one sweeper: all that can end must end."""
    walk.faults = False
    walk.held.clear()
    sweeper = Sweeper(walk.store, "healer")
    for _ in range(40):
        await walk.set_clock(walk.oracle.now + 3100)
        await sweeper.run_once()
        for run in await walk.hints():
            lease = await walk.lab.try_claim(run, "good")
            if isinstance(lease, api.Claimed):
                held = Held(lease)
                await walk.look(held)
                while (await walk.store.read_log(run, held.read_to, limit=1)).entries:
                    await walk.look(held)
                await walk._send(held, "close", walk._prepared(held, ending()))
        if all(run.sealed for run in walk.oracle.runs.values()):
            return
    for name, left in walk.oracle.runs.items():
        # A deadline, as a time to start, stands at its time also when the clock jumped back since; a lease does not.
        is_due = 0 < left.stopping <= walk.oracle.now
        has_rested = left.lease_until == 0 and (left.blocked or left.rested_at >= left.input_seq)
        is_early = walk.oracle.timers.get(f"start||{name}", 0) > walk.oracle.now
        waits = walk.oracle.waits_in_thread(name)
        assert left.sealed or ((has_rested or is_early or waits) and not is_due), (
            f"{name} never came to rest: {left.lease_until=} {left.input_seq=} {left.rested_at=} {left.closing=}"
        )


async def judge(walk: Walk) -> None:
    """The log is what the oracle says, to the byte; the oracles of the contract hold; nothing is left behind."""
    texts: list[str] = []
    for name, run in walk.oracle.runs.items():
        log = await walk.lab.log(name)
        assert [e.seq for e in log] == list(range(1, len(log) + 1))
        assert [(str(e.tag), e.raw.decode().partition(',"cause":')[2].partition(",")[2]) for e in log] == [
            (tag, envelope) for tag, envelope, _ in run.log
        ]
        types = [e.event().type for e in log]
        assert sum(t in TERMINAL for t in types) == run.sealed == (types[-1] in TERMINAL)
        epochs = [e.meta.epoch for e in log if e.meta.epoch is not None]
        assert epochs == sorted(epochs), "blocks of two fences interleave"
        times = [e.event().ts for e in log]
        assert times == sorted(times)
        texts += [e.event().data["text"] for e in log if e.event().type == "progress.noted"]
        commands = [e.event().data["command_id"] for e in log if e.event().type == "command.received"]
        assert len(commands) == len(set(commands))
        assert {f"{name} {c}" for c in commands} >= {a for a in walk.acked if a.startswith(name + " ")}
        assert (await walk.store.load(name)).run == fold_all(name, None, [e.event() for e in log])
        while len(walk.read[name]) < len(log):
            await walk.subscribe()
            name_page = await walk.store.read_log(name, walk.cursors[name], limit=100)
            walk.read[name] += [e.raw for e in name_page.entries]
            walk.cursors[name] = name_page.entries[-1].cursor if name_page.entries else walk.cursors[name]
        assert walk.read[name] == [e.raw for e in log]
        assert run.unapplied >= 0
    once = [t for t in texts if t not in ("vote", "stray")]
    assert len(once) == len(set(once)), "an entry was written twice"
    assert {t for t in walk.acked if " " not in t} <= set(once) <= walk.sent
    await _hygiene(walk)


async def _hygiene(walk: Walk) -> None:
    keys = PartitionKeys.of(PARTITION)
    raw = walk.lab.raw
    leases = {m.decode(): int(s) for m, s in await raw.zrange(keys.leases, 0, -1, withscores=True) if m != b"-"}
    timers = {m.decode(): int(s) for m, s in await raw.zrange(keys.timers, 0, -1, withscores=True) if m != b"-"}
    assert leases == walk.oracle.leases
    assert timers == walk.oracle.timers
    threads = {f.decode(): msgspec.msgpack.decode(v) for f, v in (await raw.hgetall(keys.threads)).items() if f != b"-"}
    assert threads == {name: line for name, line in walk.oracle.threads.items() if line}
    known = {f"{keys.tag}:{kind}:{run}" for kind in ("log", "private", "run", "side") for run in walk.oracle.runs}
    known |= {getattr(keys, k) for k in ("leases", "timers", "done", "index", "threads", "switch", "outbox", "meta")}
    known.add(keys.commands(QUEUE))
    assert {k.decode() for k in await raw.keys(keys.tag + ":*")} == known
    assert all(RunKeys.of(run).partition == keys for run in walk.oracle.runs)
