"""`ctx`: what workflow code may ask for. Every call comes out the same in every history replay.

Promises that a call with a step of its own is recorded once, under the id that its place in the code gives it.
Leaves when things happen to `machine`, and doing them to the worker. Plain asyncio works beside it: `gather`,
`wait`, `wait_for`, `timeout`, `TaskGroup`, `Queue`, `Event`, and `asyncio.sleep` is a durable timer.
"""

import asyncio
import hashlib
import logging
import random
import uuid
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, Final, ParamSpec, TypeVar, cast

import msgspec

from towline.protocol import event_data as d
from towline.protocol import queries, times
from towline.protocol.approvals import digest_of, is_decider_entry
from towline.protocol.events import Audience
from towline.protocol.ids import derived_run_id
from towline.protocol.limits import ARTIFACT_BYTES, PAYLOAD_BYTES, PLAN_ITEMS
from towline.protocol.values import PlanItem, PlanStatus, Proposal, Question
from towline.workers.decisions import (
    Announce,
    ApplyCommand,
    ClaimDraft,
    Published,
    RecordMarker,
    RejectCommand,
    RequestApproval,
    SaveCheckpoint,
    StartActivity,
    StoreArtifact,
)
from towline.workers.entries import check_data
from towline.workers.loop import Scope, current_scope
from towline.workers.machine import Machine, StepFailed
from towline.workers.registry import Activity, Workflow, encode_value
from towline.workers.values import (
    ActivityError,
    Artifact,
    Citable,
    Decision,
    Info,
    MachineDropped,
    Reference,
)

P = ParamSpec("P")
R = TypeVar("R")
Evidence = Citable | Iterable[Citable | Iterable[Citable]]


class Context:
    """The workflow's way to everything. Made by the engine; usable only in the workflow's own tasks."""

    def __init__(self, machine: Machine) -> None:
        facts = machine.facts
        self._machine = machine
        self._plan: list[PlanItem] = []
        self.state = SimpleNamespace()
        """Free for the workflow; rebuilt by history replay like everything else."""
        self.info: Final = Info(
            run=facts.run,
            workflow=machine.definition.name,
            version=machine.definition.version,
            generation=facts.generation,
            owner=facts.owner,
            created_at=_moment(facts.created_ms),
        )
        self.logger: Final = _QuietInReplay(logging.getLogger(f"towline.workflow.{self.info.workflow}"), machine)

    # --- activities, time, people

    async def run(self, activity: Activity[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run an activity and return its recorded result.

        Raises `ActivityError` when it failed for good, or at once when the arguments are too large to be recorded;
        `TypeError` when they do not fit or cannot be recorded. Cancelling the task that waits here cancels the
        activity.
        """
        if not isinstance(activity, Activity):
            raise TypeError(f"ctx.run takes a function decorated with @activity, not {activity!r}")
        encoded = activity.encode_args(args, kwargs)
        step = self._step(activity.name)
        if len(encoded) > PAYLOAD_BYTES:
            size = f"the arguments of {step} take {len(encoded)} bytes, the limit is {PAYLOAD_BYTES}"
            raise ActivityError(activity.name, "TooLarge", f"{size}; keep them with ctx.artifact(…) and hand on its id")
        start = StartActivity(step=step, cause=self._machine.cause, activity=activity, args=encoded)
        try:
            result = await self._machine.run_activity(start)
        except StepFailed as failed:
            raise ActivityError(activity.name, failed.error.type, failed.error.message) from None
        return cast(R, activity.decode_result(result))

    async def sleep(self, duration: timedelta | float) -> None:
        """Sleep durably; a number is seconds. Costs nothing while it lasts."""
        seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
        await asyncio.sleep(seconds)

    async def sleep_until(self, moment: datetime) -> None:
        """Sleep durably until a moment with a time zone."""
        if moment.tzinfo is None:
            raise ValueError("sleep_until takes a datetime with a time zone")
        await self.sleep(moment - self.now())

    async def wait_signal(self, name: str, *, effect: str | None = None) -> Any:
        """The payload of the oldest unread signal `name`, waiting for one if need be.

        Signals are kept from before the first line. `effect` is what the sender reads became of it. A payload
        that is not of the declared type is rejected, and the wait goes on.
        """
        signals = self._machine.definition.signals
        if name not in signals:
            raise ValueError(f"declare the signal first: @workflow(..., signals={{{name!r}: PayloadType}})")
        while True:
            command = await self._machine.next_signal(name)
            step = self._step("signal")
            try:
                payload = msgspec.json.decode(command.payload, type=signals[name])
            except msgspec.ValidationError as error:
                rejected = d.CommandRejected(
                    command_id=command.command_id, type=command.type, code="bad_request", text=str(error)
                )
                self._machine.decide(
                    RejectCommand(step=step, cause=command.seq, subject=command.subject, data=rejected)
                )
                continue
            applied = d.CommandApplied(
                command_id=command.command_id, type=command.type, effect=effect or f"signal {name} was read"
            )
            self._machine.decide(ApplyCommand(step=step, cause=command.seq, subject=command.subject, data=applied))
            return payload

    async def wait_condition(self, holds: Callable[[], Any]) -> None:
        """Wait until `holds()` is true; it is asked whenever the workflow comes to rest."""
        self._step("condition")
        await self._machine.wait_condition(holds)

    async def approval(
        self,
        title: str,
        *,
        proposal: Proposal,
        deciders: Sequence[str] | None = None,
        exclude: Sequence[str] = (),
        quorum: int = 1,
        questions: Sequence[Question | str] = (),
        expires: timedelta | None = None,
        why: str | None = None,
    ) -> Decision:
        """Ask people, and wait as long as it takes. Returns how it ended; only `approved` is a yes.

        The decision is bound to `proposal` and `questions` by a digest. `deciders` and `exclude` are lists of
        `user:<sub>`, `role:<owner, collaborator, operator>`, `group:<name>`; by default the owner decides.
        """
        named = [*(deciders if deciders is not None else ["role:owner"]), *exclude]
        for entry in named:
            if not is_decider_entry(entry):
                raise ValueError(f"{entry!r} is not user:<sub>, role:<role> or group:<name>")
        if quorum < 1:
            raise ValueError("quorum counts the approvals that are needed: 1 or more")
        step = self._step("approval")
        request = "apr_" + self._derived(step)
        asked = [
            question if isinstance(question, Question) else Question(f"q{number}", question)
            for number, question in enumerate(questions, 1)
        ]
        data = d.ApprovalRequested(
            request=request,
            title=title,
            proposal=proposal,
            digest=digest_of(request, proposal, asked),
            questions=asked,
            deciders=list(deciders) if deciders is not None else ["role:owner"],
            exclude=list(exclude),
            quorum=quorum,
            expires_at=None if expires is None else times.to_wire(self._machine.now_ms + _ms(expires)),
            why=why,
        )
        check_data(data)
        self._machine.decide(RequestApproval(step=step, cause=self._machine.cause, data=data))
        fact = await self._machine.wait_approval(request, title)
        return Decision(
            approved=fact.outcome == "approved",
            outcome=cast(Any, fact.outcome),
            decisions=fact.decisions,
            seq=fact.seq,
        )

    # --- deterministic values

    def now(self) -> datetime:
        """The workflow's time (UTC): when what it last heard of happened. Stands still between feeds."""
        return _moment(self._machine.now_ms)

    def random(self) -> random.Random:
        """A generator seeded by this step: `ctx.random().choice(…)`. A call elsewhere does not shift it."""
        return random.Random(self._digest(self._step("random")))

    def uuid(self) -> uuid.UUID:
        """A version 4 UUID derived from this step."""
        return uuid.UUID(bytes=self._digest(self._step("uuid"))[:16], version=4)

    async def side_effect(self, make: Callable[[], Any]) -> Any:
        """The JSON value of `make()`, called once and recorded. For cheap local values only: it must not fail
        half way, and what it touches outside is not undone. Anything slow or remote is an activity."""
        step = self._step("side_effect")
        recorded = self._machine.markers.get(step)
        if recorded is None:
            recorded = encode_value(make(), "the value of a side effect")
        self._machine.decide(RecordMarker(step=step, cause=self._machine.cause, kind="side_effect", value=recorded))
        return msgspec.json.decode(recorded)

    # --- what people read

    async def plan(self, *titles: str, why: str | None = None) -> list[PlanItem]:
        """Propose the plan, or replace it. Returns its items; report on them with `step`."""
        if not 0 < len(titles) <= PLAN_ITEMS:
            raise ValueError(f"a plan has 1 to {PLAN_ITEMS} items")
        revised = bool(self._plan)
        step = self._step("plan")
        occurrence = step.rpartition(":")[2]
        prefix = "" if occurrence == "1" else f"{occurrence}."
        self._plan = [PlanItem(f"{prefix}{number}", title) for number, title in enumerate(titles, 1)]
        made = (d.PlanRevised if revised else d.PlanProposed)(items=list(self._plan), why=why)
        self._announce(step, made)
        return list(self._plan)

    async def step(self, item: PlanItem | str, status: PlanStatus, note: str | None = None) -> None:
        """Say where an item of the plan stands."""
        item_id = item if isinstance(item, str) else item.id
        if all(known.id != item_id for known in self._plan):
            raise ValueError(f"the plan has no item {item_id!r}")
        self._announce(self._step("step"), d.PlanStep(id=item_id, status=status, note=note))

    async def note(self, text: str, percent: float | None = None, *, topic: str | None = None) -> None:
        """Say in a sentence what is going on; it becomes the run's summary."""
        self._announce(self._step("note"), d.ProgressNoted(text=text, percent=percent, topic=topic))

    async def checkpoint(
        self,
        title: str,
        *,
        done: Sequence[str] = (),
        next: Sequence[str] = (),  # noqa: A002 - the event's own word
        evidence: Evidence = (),
    ) -> None:
        """Save a place from which a fresh worker or person could go on: what is done, what comes next."""
        check_data(d.CheckpointSaved(title=title, done=list(done), next=list(next), evidence=[], automatic=False))
        saved = SaveCheckpoint(
            step=self._step("checkpoint"),
            cause=self._machine.cause,
            title=title,
            done=tuple(done),
            next=tuple(next),
            evidence=_references(evidence),
        )
        self._machine.decide(saved)

    async def artifact(self, name: str, data: bytes | str, media_type: str) -> Artifact:
        """Keep `data` as an artifact of the run and announce it. The bytes are durable before the announcement."""
        content = data.encode() if isinstance(data, str) else bytes(data)
        if len(content) > ARTIFACT_BYTES:
            raise ValueError(f"artifact {name!r} has {len(content)} bytes, the limit is {ARTIFACT_BYTES}")
        step = self._step("artifact")
        made = d.ArtifactCreated(
            artifact="art_" + self._derived(step),
            name=name,
            media_type=media_type,
            size=len(content),
            sha256=hashlib.sha256(content).hexdigest(),
            step=step,
        )
        check_data(made)
        self._machine.decide(StoreArtifact(step=step, cause=self._machine.cause, data=made, content=content))
        return Artifact(made.artifact, made.sha256, made.size)

    async def publish(self, name: str, value: Any, *, audience: Audience = "collaborator") -> None:
        """Show `value` under `name` to whoever queries the run, until the next one. It is JSON of at most 64 KiB.

        `audience` is the lowest role that may read it.
        """
        self._scope()
        encoded = encode_value(value, f"the published value {name!r}")
        queries.check(name, encoded)
        self._machine.publish(name, Published(encoded, audience))

    # --- the report

    def claim(self, text: str, evidence: Evidence = ()) -> None:
        """Add a statement to the completion, with what was observed for it."""
        self._scope()
        self._machine.claims.append(ClaimDraft(text, _references(evidence)))

    def evidence(self, activity: Activity[..., Any] | str) -> list[Reference]:
        """The results of an activity so far in this run, to be cited by `claim` and `checkpoint`."""
        self._scope()
        name = activity if isinstance(activity, str) else activity.name
        return [Reference(step=step) for step in self._machine.finished_steps.get(name, ())]

    def summary(self, text: str) -> None:
        """What the completion says in one paragraph."""
        self._scope()
        self._machine.summary = text

    # --- inside

    def _scope(self) -> Scope:
        try:
            scope = current_scope.get()
        except LookupError:
            raise RuntimeError("ctx belongs to workflow code; hand an activity what it needs as arguments") from None
        if self._machine.loop.is_closed():
            raise MachineDropped
        return scope

    def _step(self, name: str) -> str:
        return self._scope().next_step(name)

    def _digest(self, step: str) -> bytes:
        return hashlib.sha256(f"{self.info.run}\n{step}".encode()).digest()

    def _derived(self, step: str) -> str:
        """26 characters that stand for this run and step."""
        return derived_run_id(self._digest(step)).removeprefix("run_")

    def _announce(self, step: str, data: Any) -> None:
        check_data(data)
        self._machine.decide(Announce(step=step, cause=self._machine.cause, data=data))


async def body(machine: Machine) -> Any:
    """A run's main task: its function on a fresh `Context` and the decoded input."""
    definition: Workflow = machine.definition
    ctx = Context(machine)
    if not definition.takes_input:
        return await definition.fn(ctx)
    return await definition.fn(ctx, definition.decode_input(machine.facts.input))


class _QuietInReplay(logging.LoggerAdapter[logging.Logger]):
    """Says each line once: lines of a history replay were said when they first happened."""

    def __init__(self, logger: logging.Logger, machine: Machine) -> None:
        super().__init__(logger, {"run": machine.facts.run})
        self._machine = machine

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - its name in logging
        return not self._machine.replaying and super().isEnabledFor(level)


def _references(evidence: Any) -> tuple[Reference, ...]:
    if isinstance(evidence, Artifact):
        return (Reference(artifact=evidence.id),)
    if isinstance(evidence, Decision):
        return (Reference(seq=evidence.seq),)
    if isinstance(evidence, Reference):
        return (evidence,)
    if isinstance(evidence, (str, bytes)) or not isinstance(evidence, Iterable):
        raise TypeError(f"evidence is artifacts, decisions and ctx.evidence(activity), not {evidence!r}")
    return tuple(reference for item in evidence for reference in _references(item))


def _moment(at_ms: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=at_ms)


def _ms(duration: timedelta) -> int:
    return max(0, -(-duration // timedelta(milliseconds=1)))
