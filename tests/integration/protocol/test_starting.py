"""Starting runs against a real store: once per key, once per own id, and never what no worker announced."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.lab import QUEUE, WORKFLOW, Lab, open_lab
from tests.support.server import StoreServer
from towline.protocol import commands as c
from towline.protocol import times
from towline.protocol.errors import Problem, ProblemError
from towline.protocol.projection import Caller
from towline.protocol.store.acceptance import cancel_run
from towline.protocol.store.api import Announced, NoRun
from towline.protocol.store.keys import RunKeys
from towline.protocol.store.payload_objects import Objects
from towline.protocol.store.payloads import Payloads
from towline.protocol.store.starting import Retention, StartCommand, Started, StartRun, choose_version, start_run
from towline.protocol.store.sweep import Sweeper

PAYLOADS = Payloads(Objects.at("memory:///"))
REVIEW = StartRun(workflow="review", input={"path": "/src"})


async def start(lab: Lab, request: StartRun = REVIEW, key: str | None = None, subject: str = "alice") -> Started:
    return await start_run(
        lab.store,
        PAYLOADS,
        request,
        caller=Caller(subject, "owner"),
        announced=await lab.store.announced(),
        idempotency_key=key,
    )


async def hints(lab: Lab) -> list[str]:
    return [h.run for h in await lab.store.read_hints(QUEUE, count=9, block_ms=1)]


async def refused(lab: Lab, *args: Any, **more: Any) -> Problem:
    with pytest.raises(ProblemError) as caught:
        await start(lab, *args, **more)
    return caught.value.problem


async def test_fifty_at_once_with_one_key_are_one_run(lab: Lab) -> None:
    answers = await asyncio.gather(*(start(lab, key="k1") for _ in range(50)))
    assert len({a.run for a in answers}) == 1
    assert sum(not a.replayed for a in answers) == 1
    assert len(await lab.log(answers[0].run)) == 1
    assert len(await lab.store.list_runs("a|", before=None, limit=99)) == 1


async def test_a_key_belongs_to_one_body_and_one_subject(lab: Lab) -> None:
    first = await start(lab, key="k1")
    assert (await refused(lab, replace(REVIEW, input={}), key="k1")).code == "idempotency_mismatch"
    assert (await refused(lab, replace(REVIEW, headline="Other"), key="k1")).code == "idempotency_mismatch"
    other = await start(lab, key="k1", subject="bob")
    assert other.run != first.run
    assert (await start(lab, key="k2")).run != first.run
    assert await start(lab, key="k1") == Started(first.run, replayed=True)


async def test_fifty_at_once_with_one_id_are_one_run(lab: Lab) -> None:
    answers = await asyncio.gather(*(start(lab, replace(REVIEW, id="mine")) for _ in range(50)))
    assert {a.run for a in answers} == {"mine"}
    assert sum(not a.existing for a in answers) == 1


async def test_an_own_id_answers_the_same_start_and_conflicts_with_any_other(lab: Lab) -> None:
    mine = replace(REVIEW, id="mine")
    assert await start(lab, mine) == Started("mine")
    assert await start(lab, mine) == Started("mine", existing=True)
    assert await start(lab, replace(mine, headline="Other words")) == Started("mine", existing=True)
    for request, subject in ((replace(mine, input={}), "alice"), (mine, "bob")):
        problem = await refused(lab, request, subject=subject)
        assert (problem.code, problem.field, problem.request) == ("conflict", "id", None)


@pytest.mark.parametrize("run", ["run_1", "", "a b", "-a", "x" * 129, "a/b", "a\n"])
async def test_an_id_that_may_not_be_ones_own_is_refused(lab: Lab, run: str) -> None:
    assert (await refused(lab, replace(REVIEW, id=run))).field == "id"


async def test_without_key_or_id_each_start_is_a_run(lab: Lab) -> None:
    runs = {(await start(lab)).run for _ in range(5)}
    assert len(runs) == 5
    assert all(run.startswith("run_") for run in runs)


async def test_what_no_worker_announced_is_refused_with_what_there_is(lab: Lab) -> None:
    problem = await refused(lab, StartRun(workflow="nope"))
    assert (problem.code, problem.field, problem.known) == ("bad_request", "workflow", ["review"])
    assert (await refused(lab, replace(REVIEW, queue="gpu"))).field == "queue"
    assert (await refused(lab, replace(REVIEW, input=[]))).field == "input"
    assert (await refused(lab, replace(REVIEW, scope="y" * 40_000))).code == "too_large"
    for text in ("tomorrow", "2027-01-01T00:00:00", "0500-01-01T00:00:00Z", "9999-12-31T23:59:59-14:00"):
        assert (await refused(lab, replace(REVIEW, start_at=text))).field == "start_at"
    assert await lab.store.list_runs("a|", before=None, limit=9) == []


async def test_a_run_with_a_time_starts_then_also_when_the_store_was_away(tmp_path: Path) -> None:
    with StoreServer(tmp_path, durable=True) as server:
        async with open_lab(server.url) as lab:
            at_ms = lab.store.now_ms() + 600_000
            soon = replace(REVIEW, start_at=times.to_wire(at_ms), retention=Retention(5000))
            run = (await start(lab, soon)).run
            (entry,) = await lab.log(run)
            assert (entry.event().data["start_at"], entry.event().data["retention"]) == (
                times.to_wire(at_ms), {"archive_after_ms": 5000},
            )  # fmt: skip
        server.restart()
        async with open_lab(server.url) as lab:
            sweeper = Sweeper(lab.store, "s")
            loaded = await lab.store.load(run)
            assert (loaded.run.status, loaded.run.status_detail and loaded.run.status_detail.code) == (
                "queued", "start_at",
            )  # fmt: skip
            await lab.pass_ms(590_000)
            await sweeper.run_once()
            assert await hints(lab) == []
            await lab.pass_ms(10_000)
            await asyncio.gather(*(Sweeper(lab.store, name).run_once() for name in "abc"))
            assert await hints(lab) == [run]
            assert await lab.types(run) == ["run.created", "timer.fired"]
            assert (await lab.store.load(run)).run.status_detail is None
            await lab.claim(run)


async def test_a_cancel_before_its_time_closes_a_run_at_once(lab: Lab) -> None:
    run = (await start(lab, replace(REVIEW, start_at="2999-01-01T00:00:00Z"))).run
    await cancel_run(lab.store, run, c.Cancel(), Caller("alice", "owner"))
    assert await lab.types(run) == ["run.created", "cancel.requested", "run.cancelled"]
    part = RunKeys.of(run).partition
    assert await lab.raw.zrange(part.timers, 0, -1) == await lab.raw.zrange(part.leases, 0, -1) == [b"-"]


def go(command_id: str | None = "c1", payload: Any = 1) -> StartCommand:
    return StartCommand("signal", {"name": "go", "payload": payload}, command_id)


async def test_a_command_comes_with_the_run_or_neither_does(lab: Lab) -> None:
    run = (await start(lab, replace(REVIEW, command=go()), key="k1")).run
    assert await lab.types(run) == ["run.created", "command.received"]
    assert await start(lab, replace(REVIEW, command=go()), key="k1") == Started(run, replayed=True)
    assert len(await lab.log(run)) == 2
    assert (await refused(lab, replace(REVIEW, command=go(payload=2)), key="k1")).code == "idempotency_mismatch"
    too_large = await refused(lab, replace(REVIEW, command=StartCommand("cancel", {"reason": "x" * 1001})))
    assert (too_large.code, too_large.field) == ("bad_request", "command.data.reason")
    for payload, code in (("no number", "bad_request"), (1, None)):
        mine = replace(REVIEW, id=f"mine-{code}", command=go(None, payload))
        if code is None:
            assert await start(lab, mine, key="k2") == Started("mine-None")
        else:
            assert (await refused(lab, mine)).code == code
            with pytest.raises(NoRun):
                await lab.store.facts("mine-bad_request")
    kept = await lab.store.command_outcome("mine-None", "alice", "k2")
    assert kept is not None, "the key names the command"


async def test_a_command_reaches_the_run_that_exists_by_the_rules_of_commands(lab: Lab) -> None:
    mine = replace(REVIEW, id="mine", command=go("c1"))
    await start(lab, mine)
    for _ in range(2):
        assert (await start(lab, mine)).existing
    assert (await start(lab, replace(mine, command=go("c2")))).existing
    assert (await start(lab, replace(mine, command=go(None)))).existing
    assert (await lab.types("mine")).count("command.received") == 3
    assert (await refused(lab, replace(mine, command=go("c1", 7)))).code == "idempotency_mismatch"
    assert (await refused(lab, replace(mine, input={}, command=go("c3")))).code == "conflict"
    assert (await refused(lab, replace(mine, command=go("c4")), subject="bob")).code == "conflict"
    await start(lab, replace(mine, command=StartCommand("cancel")))
    assert (await lab.types("mine"))[-1] == "run.cancelled"
    closed = await refused(lab, replace(mine, command=go("c5")))
    assert (closed.code, closed.field) == ("run_closed", "command")
    assert (await start(lab, mine)).existing, "what was accepted is answered also of a run that has ended"


async def test_fifty_at_once_with_one_id_and_one_command_are_one_of_each(lab: Lab) -> None:
    answers = await asyncio.gather(*(start(lab, replace(REVIEW, id="mine", command=go())) for _ in range(50)))
    assert sum(not a.existing for a in answers) == 1
    assert await lab.types("mine") == ["run.created", "command.received"]


async def test_a_run_that_begins_with_its_cancel_ends_at_once(lab: Lab) -> None:
    run = (await start(lab, replace(REVIEW, command=StartCommand("cancel", {"reason": "tested"})))).run
    assert await lab.types(run) == ["run.created", "cancel.requested", "run.cancelled"]


async def test_the_input_is_private_and_the_first_event_says_the_rest(lab: Lab) -> None:
    run = (await start(lab, replace(REVIEW, labels={"team": "a"}, scope={"fs": ["/src"]}))).run
    (entry,) = await lab.log(run)
    assert entry.private == b'{"input":{"path":"/src"}}'
    data = entry.event().data
    assert (data["owner"], data["workflow"], data["version"], data["queue"]) == ("alice", "review", "1", "default")
    assert (data["labels"], data["scope"]) == ({"team": "a"}, {"fs": ["/src"]})
    assert "/src" not in entry.raw.decode().replace('"fs":["/src"]', "")


def test_the_newest_version_is_chosen_as_people_count() -> None:
    def announced(version: str) -> Announced:
        return Announced(replace(WORKFLOW, version=version), "w", 0)

    for versions, newest in (
        (["1", "2", "10"], "10"),
        (["1.9", "1.10", "1.2"], "1.10"),
        (["1", "1.1"], "1.1"),
        (["a", "b"], "b"),
        (["1-rc", "1"], None),
        (["v1", "2"], None),
    ):
        chosen = {
            choose_version([announced(v) for v in order], "review").version for order in (versions, versions[::-1])
        }
        assert len(chosen) == 1
        assert newest is None or chosen == {newest}
