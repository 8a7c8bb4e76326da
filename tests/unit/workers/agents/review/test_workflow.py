"""The whole review, decided by the real machine and done by the real tools, without a log or a worker."""

import hashlib
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from towline.protocol.event_data import PlanStep, ProgressNoted
from towline.protocol.values import ErrorInfo, Vote
from towline.workers import Artifact
from towline.workers.activity_api import current_attempt
from towline.workers.agents.review.models import ReviewInput, Source
from towline.workers.agents.review.workflow import LANES, ReviewResult, in_batches, review
from towline.workers.context import body
from towline.workers.decisions import (
    ActivityFailed,
    ActivityFinished,
    Announce,
    ApprovalResolved,
    Complete,
    Fact,
    Fail,
    MachineDecision,
    RequestApproval,
    SaveCheckpoint,
    StartActivity,
    StoreArtifact,
)
from towline.workers.machine import Machine, RunFacts

RUN = "run_0123456789ABCDEFGHJKMNPQRS"
FILES = {f"pkg/m{number}.py": b"import os\n\nx = 1\n" for number in range(12)} | {
    "pkg/broken.py": b"def f(:\n",
    "pkg/clean.py": b"x = 1\n",
}


class Attempt:
    """What a running activity may ask for, as far as `review` asks."""

    attempt = 1
    idempotency_key = fencing_token = ""
    cancelled = False
    last_heartbeat = None

    def __init__(self) -> None:
        self.artifacts: dict[str, bytes] = {}

    def heartbeat(self, details: Any = None) -> None:
        raise NotImplementedError

    def usage(self, *, usd_micros: int = 0, tokens: int = 0) -> None:
        raise NotImplementedError

    def fetch_upload(self, ref: str, path: Path) -> int:
        raise NotImplementedError

    def artifact(self, name: str, data: bytes | str, media_type: str) -> Artifact:
        content = data.encode() if isinstance(data, str) else data
        self.artifacts[name] = content
        return Artifact(f"art_{name}", hashlib.sha256(content).hexdigest(), len(content))

    def delta(self, text: str, message: str | None = None, kind: str = "text") -> None:
        raise NotImplementedError


class Review:
    """One run of the workflow on a machine of its own: decisions are carried out in the order they come."""

    def __init__(self, source: Path, decide: Callable[[RequestApproval], str] = lambda _: "approved") -> None:
        self.facts = RunFacts(RUN, "ana", 1_000, msgspec.json.encode(ReviewInput(Source(str(source)))))
        self.machine = Machine(review, self.facts, body)
        self.decide = decide
        self.attempt = Attempt()
        self.decisions: list[MachineDecision] = []
        self.fed: list[Fact] = []
        self.most_at_once = 0

    def run(self) -> "Review":
        self.machine.start()
        todo: deque[MachineDecision] = deque()
        while True:
            fresh = self.machine.take_decisions()
            self.decisions += fresh
            todo += [decision for decision in fresh if isinstance(decision, StartActivity | RequestApproval)]
            self.most_at_once = max(self.most_at_once, len(todo))
            if not todo:
                break
            fact = self._carry_out(todo.popleft())
            self.fed.append(fact)
            self.machine.feed(fact, 2_000)
        self.machine.drop()
        return self

    def _carry_out(self, decision: MachineDecision) -> Fact:
        if isinstance(decision, RequestApproval):
            votes = (Vote(by="user:ana", decision="approve", at="2026-01-01T00:00:00.000Z"),)
            outcome = self.decide(decision)
            return ApprovalResolved(
                seq=99, at_ms=2_000, request=decision.data.request, outcome=outcome, decisions=votes
            )
        assert isinstance(decision, StartActivity)
        token = current_attempt.set(self.attempt)
        try:
            result = decision.activity.fn(*decision.activity.decode_args(decision.args))
        except Exception as error:
            return ActivityFailed(step=decision.step, error=ErrorInfo(type(error).__name__, str(error)))
        finally:
            current_attempt.reset(token)
        return ActivityFinished(step=decision.step, result=msgspec.json.encode(result))

    @property
    def result(self) -> ReviewResult:
        assert isinstance(self.machine.ending, Complete), self.machine.ending
        return msgspec.json.decode(self.machine.ending.result, type=ReviewResult)

    @property
    def claims(self) -> dict[str, int]:
        """Each claim with the number of things it cites."""
        assert isinstance(self.machine.ending, Complete), self.machine.ending
        return {claim.text: len(claim.evidence) for claim in self.machine.ending.claims}

    def steps(self) -> list[tuple[str, str]]:
        said = [made.data for made in self.decisions if isinstance(made, Announce)]
        return [(data.id, data.status) for data in said if isinstance(data, PlanStep)]

    def artifacts(self) -> dict[str, bytes]:
        stored = {made.data.name: made.content for made in self.decisions if isinstance(made, StoreArtifact)}
        return stored | self.attempt.artifacts


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TOWLINE_ALLOW_PATHS", str(tmp_path))
    monkeypatch.setenv("TOWLINE_WORK_DIR", str(tmp_path / "work"))
    return tmp_path / "work"


@pytest.fixture
def project(source: Path) -> Path:
    for name, data in FILES.items():
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_bytes(data)
    return source


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_an_approved_review_fixes_a_copy_and_proves_it(project: Path, work: Path) -> None:
    done = Review(project).run()
    assert done.result.verified is True
    assert contents(project) == FILES
    assert done.result.applied_to is not None
    fixed = contents(work / done.result.applied_to)
    assert fixed == {path: data.replace(b"import os\n\n", b"\n") for path, data in FILES.items()}
    assert [path.name for path in (work / RUN).iterdir()] == [done.result.applied_to.removeprefix(f"{RUN}/")]
    assert set(done.artifacts()) == {"review.md", "findings.json", "fixes.patch", "verification.md"}
    assert done.steps() == [(str(n), status) for n in range(1, 7) for status in ("active", "done")]


def test_every_claim_cites_what_was_observed(project: Path, work: Path) -> None:
    claims = Review(project).run().claims
    (first, *others) = claims.items()
    assert "in 14 Python files" in first[0]
    assert first[1] == 2 + 4  # two artifacts; two batches, each by two tools
    assert others[0] == ("The approved fixes, and no others, were applied to a copy.", 2)
    assert others[1][0].startswith("Verification passed: ")
    assert others[1][1] == 1 + 4


def test_the_decision_is_bound_to_the_diff(project: Path, work: Path) -> None:
    done = Review(project).run()
    (asked,) = [made.data for made in done.decisions if isinstance(made, RequestApproval)]
    assert asked.proposal is not None
    digest = hashlib.sha256(done.artifacts()["fixes.patch"]).hexdigest()
    assert f"diff: artifact art_fixes.patch, sha256:{digest}" in asked.proposal.lineage


@pytest.mark.parametrize("outcome", ["rejected", "expired"])
def test_without_an_approval_nothing_is_applied_and_the_end_says_so(project: Path, work: Path, outcome: str) -> None:
    done = Review(project, lambda _: outcome).run()
    assert done.result.summary.endswith(f"Nothing was applied: the fixes were {outcome}.")
    assert (done.result.applied_to, done.result.verified) == (None, None)
    assert done.claims[f"Nothing was applied: the fixes were {outcome}."] == 1
    assert done.steps()[-2:] == [("5", "skipped"), ("6", "skipped")]
    assert contents(project) == FILES
    assert not list(work.rglob("*.py"))


def test_a_change_of_the_copies_after_the_question_is_not_applied(project: Path, work: Path) -> None:
    def tamper(_: RequestApproval) -> str:
        (overlay,) = (work / RUN).glob("overlay-*")
        (overlay / "pkg" / "m0.py").write_bytes(b"import evil\n")
        return "approved"

    done = Review(project, tamper).run()
    assert isinstance(done.machine.ending, Fail)
    assert "nothing was applied" in done.machine.ending.error.message
    assert not list((work / RUN).glob("fixed-*"))


def test_a_folder_without_fixes_asks_nobody(source: Path, work: Path) -> None:
    (source / "a.py").write_bytes(b"x = 1\n")
    done = Review(source).run()
    assert done.result.patch is None
    assert done.result.summary.endswith("Nothing was applied: there is no safe fix to propose.")
    assert not any(isinstance(made, RequestApproval) for made in done.decisions)
    assert set(done.artifacts()) == {"review.md", "findings.json"}


def test_an_empty_folder_fails_with_what_to_do(source: Path, work: Path) -> None:
    done = Review(source).run()
    assert isinstance(done.machine.ending, Fail)
    assert "choose a folder with Python files" in done.machine.ending.error.message
    (saved,) = [made for made in done.decisions if isinstance(made, SaveCheckpoint)]
    assert saved.next
    assert done.steps() == [("1", "active"), ("1", "failed")]


def test_a_folder_outside_the_roots_fails(tmp_path: Path, work: Path) -> None:
    done = Review(Path("/")).run()
    assert isinstance(done.machine.ending, Fail)
    assert "not a folder below an allowed one" in done.machine.ending.error.message


def test_no_absolute_path_leaves_the_worker(project: Path, work: Path, tmp_path: Path) -> None:
    (project / "out.py").symlink_to(tmp_path)
    done = Review(project).run()
    assert isinstance(done.machine.ending, Complete)
    public = [msgspec.json.encode(made.data) for made in done.decisions if isinstance(made, Announce | RequestApproval)]
    for text in (*done.artifacts().values(), *public, done.machine.ending.result):
        assert str(tmp_path).encode() not in text


def test_a_history_replay_decides_the_same(project: Path, work: Path) -> None:
    done = Review(project).run()
    again = Machine(review, done.facts, body)
    again.start()
    decided = again.take_decisions()
    for fact in done.fed:
        again.feed(fact, 2_000)
        decided += again.take_decisions()
    assert decided == done.decisions
    assert again.ending == done.machine.ending
    again.drop()


def test_few_batches_run_at_once(project: Path, work: Path) -> None:
    for number in range(60):
        (project / f"n{number}.py").write_bytes(b"")
    done = Review(project).run()
    assert done.most_at_once == LANES
    noted = [made.data for made in done.decisions if isinstance(made, Announce)]
    assert max(data.percent or 0 for data in noted if isinstance(data, ProgressNoted)) == 100


@pytest.mark.parametrize(("files", "batches", "largest"), [(1, 1, 1), (10, 1, 10), (11, 2, 10), (5000, 100, 50)])
def test_batches_are_small_and_not_too_many(files: int, batches: int, largest: int) -> None:
    paths = [str(number) for number in range(files)]
    made = in_batches(paths)
    assert (len(made), max(map(len, made))) == (batches, largest)
    assert [path for batch in made for path in batch] == paths
