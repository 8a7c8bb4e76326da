"""`ctx`: what people read, approvals, artifacts, claims; and what it refuses."""

import hashlib
import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support.driven import Driven
from towline.protocol.approvals import digest_of
from towline.workers.context import Context
from towline.workers.registry import Registry
from towline.workers.values import Artifact, Decision, Reference

PROPOSAL: Any = {
    "intent": "Apply 3 fixes",
    "lineage": ["ruff"],
    "permissions": ["write a copy"],
    "blast_radius": "the copy",
    "rollback": "delete it",
}


def _look(what: str) -> str:
    return what


look: Any = Registry().activity(_look, name="look", effect="read")


@pytest.fixture
def drive() -> Iterator[Any]:
    made: list[Driven] = []

    def start(fn: Any, **options: Any) -> Driven:
        made.append(Driven(Registry().workflow(name="test", **options)(fn)))
        return made[-1]

    yield start
    for driven in made:
        driven.close()


def proposal() -> Any:
    from towline.workers import Proposal

    return Proposal(**PROPOSAL)


def test_a_plan_and_its_steps_are_announced_whole(drive: Any) -> None:
    async def body(ctx: Context) -> None:
        one, _ = await ctx.plan("Read", "Write", why="because")
        await ctx.step(one, "done", "read it")
        again = await ctx.plan("Write")
        await ctx.step(again[0].id, "skipped")
        await ctx.note("half way", percent=50)

    driven = drive(body)
    assert driven.of("plan.proposed")[0] == {
        "items": [
            {"id": "1", "title": "Read", "status": "pending"},
            {"id": "2", "title": "Write", "status": "pending"},
        ],
        "why": "because",
    }
    assert driven.of("plan.revised")[0]["items"] == [{"id": "2.1", "title": "Write", "status": "pending"}]
    assert driven.of("plan.step") == [
        {"id": "1", "status": "done", "note": "read it"},
        {"id": "2.1", "status": "skipped"},
    ]
    assert driven.of("progress.noted") == [{"text": "half way", "percent": 50}]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda ctx: ctx.plan(), "a plan has 1 to 100 items"),
        (lambda ctx: ctx.plan("x" * 201), "plan.proposed"),
        (lambda ctx: ctx.step("9", "done"), "no item '9'"),
        (lambda ctx: ctx.wait_signal("no"), "declare the signal first"),
        (lambda ctx: ctx.approval("t", proposal=proposal(), deciders=["ana"]), "'ana' is not user:<sub>"),
        (lambda ctx: ctx.approval("t", proposal=proposal(), quorum=0), "quorum"),
        (lambda ctx: ctx.sleep_until(datetime(2026, 1, 1)), "time zone"),  # noqa: DTZ001
        (lambda ctx: ctx.checkpoint("x" * 40_000), "checkpoint.saved"),
    ],
)
def test_what_no_log_would_accept_is_refused_where_it_is_written(drive: Any, call: Any, error: str) -> None:
    async def body(ctx: Context) -> None:
        await call(ctx)

    driven = drive(body)
    assert driven.error[0] == "ValueError"
    assert error in driven.error[1]


def test_only_activities_can_be_run(drive: Any) -> None:
    async def body(ctx: Context) -> None:
        await ctx.run(_look, "x")  # type: ignore[arg-type]

    assert "decorated with @activity" in drive(body).error[1]


@pytest.mark.parametrize("outcome", ["approved", "rejected", "expired"])
def test_an_approval_is_bound_to_what_was_shown_and_says_how_it_ended(drive: Any, outcome: str) -> None:
    async def body(ctx: Context) -> Any:
        made = await ctx.approval(
            "Apply?", proposal=proposal(), questions=["Sure?"], expires=timedelta(hours=1), quorum=1
        )
        assert isinstance(made, Decision)
        ctx.claim("asked", made)
        return [made.approved, made.outcome, [vote.by for vote in made.decisions], made.seq]

    driven = drive(body)
    asked = driven.of("approval.requested")[0]
    assert asked["request"].startswith("apr_")
    assert asked["digest"] == digest_of(asked["request"], PROPOSAL, [{"id": "q1", "text": "Sure?"}])
    assert asked["deciders"] == ["role:owner"]
    assert driven.of("run.waiting")[0]["on"] == [{"id": asked["request"], "kind": "approval", "name": "Apply?"}]
    driven.crash()
    driven.resolve(outcome)
    seq = driven.types.index("approval.resolved") + 1
    assert driven.result == [outcome == "approved", outcome, ["user:ana"], seq]
    assert driven.of("run.completed")[0]["claims"] == [{"text": "asked", "evidence": [{"seq": seq}]}]


def test_an_artifact_is_named_by_run_and_step_and_hashed(drive: Any) -> None:
    async def body(ctx: Context) -> list[Any]:
        one = await ctx.artifact("a.txt", "hällo", "text/plain")
        two = await ctx.artifact("a.txt", "hällo", "text/plain")
        assert isinstance(one, Artifact)
        assert one.id != two.id
        ctx.claim("wrote", [one, two])
        return [one.id, one.sha256, one.size]

    driven = drive(body)
    made = driven.of("artifact.created")[0]
    assert driven.result == [made["artifact"], hashlib.sha256("hällo".encode()).hexdigest(), 6]
    (commit, *_) = [commit for commit in driven.commits if commit.artifacts]
    assert [artifact.content for artifact in commit.artifacts] == ["hällo".encode()] * 2
    claims = driven.of("run.completed")[0]["claims"]
    assert claims[0]["evidence"][0] == {"artifact": made["artifact"]}


def test_results_can_be_cited_before_their_place_in_the_log_is_known(drive: Any) -> None:
    async def body(ctx: Context) -> None:
        await ctx.run(look, "x")
        await ctx.checkpoint("seen", evidence=ctx.evidence(look))
        await ctx.run(look, "y")
        ctx.claim("looked twice", [ctx.evidence(look), Reference(seq=1)])
        ctx.summary("All seen.")

    driven = drive(body)
    driven.finish("1:0:look:1", "")
    driven.finish("1:0:look:2", "")
    finished = [event.seq for event in driven.events if event.type == "tool.finished"]
    assert driven.of("checkpoint.saved")[0]["evidence"] == [{"seq": finished[0]}]
    completed = driven.of("run.completed")[0]
    assert completed["claims"][0]["evidence"] == [{"seq": finished[0]}, {"seq": finished[1]}, {"seq": 1}]
    assert completed["summary"] == "All seen."


@pytest.mark.parametrize(
    ("cites", "verified"), [("artifact", True), ("nothing", False), ("created", False), (None, None)]
)
def test_a_completion_is_verified_when_its_claims_cite_what_was_observed(
    drive: Any, cites: str | None, verified: bool | None
) -> None:
    async def body(ctx: Context) -> None:
        made = await ctx.artifact("a", "x", "text/plain")
        evidence: Any = {"artifact": made, "nothing": (), "created": Reference(seq=1), None: ()}[cites]
        if cites is not None:
            ctx.claim("so", evidence)

    assert drive(body).of("run.completed")[0]["verified"] is verified


def test_evidence_is_not_just_any_text(drive: Any) -> None:
    async def body(ctx: Context) -> None:
        ctx.claim("so", "look")  # type: ignore[arg-type]

    assert "evidence is artifacts, decisions" in drive(body).error[1]


def test_ctx_belongs_to_the_workflow() -> None:
    kept: list[Context] = []

    async def body(ctx: Context) -> None:
        kept.append(ctx)
        await ctx.sleep(60)

    driven = Driven(Registry().workflow(name="test")(body))
    with pytest.raises(RuntimeError, match="belongs to workflow code"):
        kept[0].random()
    driven.close()


def test_lines_are_logged_once(drive: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "towline.workflow.test")

    async def body(ctx: Context) -> None:
        ctx.logger.info("first")
        await ctx.run(look, "x")
        ctx.logger.info("second")

    driven = drive(body)
    driven.crash()
    driven.finish("1:0:look:1", "")
    assert [record.message for record in caplog.records] == ["first", "second"]


def test_sleep_until_counts_from_the_runs_time(drive: Any) -> None:
    async def body(ctx: Context) -> None:
        await ctx.sleep_until(ctx.now() + timedelta(seconds=9))
        await ctx.sleep_until(datetime(2000, 1, 1, tzinfo=UTC))

    driven = drive(body)
    assert len(driven.of("timer.started")) == 1
    driven.pass_time(9_000)
    assert driven.types[-1] == "run.completed"


def test_info_says_which_run_this_is(drive: Any) -> None:
    async def body(ctx: Context) -> list[Any]:
        return [ctx.info.run, ctx.info.workflow, ctx.info.version, ctx.info.generation, ctx.info.owner]

    assert drive(body, version="3").result == ["run-1", "test", "3", 1, "ana"]
