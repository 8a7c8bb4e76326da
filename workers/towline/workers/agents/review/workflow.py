"""The workflow `review`: what happens, in which order, and what it may claim at the end.

    look at the folder → run the tools → report → propose → ask → apply to a copy → run the tools again

Promises that nothing is applied without an approval of exactly this diff, that the reviewed folder is never
written to, and that every claim cites what was observed. A worker may be killed at any line: another one
replays the history up to there and goes on; no tool whose result stands in the log runs again.

This is also the example to copy from. Everything that touches the disk is an activity (`activities`); what is
here is plain asyncio.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import PurePosixPath
from typing import Final

from msgspec import Struct, UnsetType
from msgspec.structs import replace

from towline.workers import Activity, ActivityError, Artifact, Context, PlanItem, Proposal, Reference, workflow
from towline.workers.agents.review.activities import (
    apply_fixes,
    byte_compile,
    lint,
    propose_fixes,
    take_stock,
    tidy,
    unpack_upload,
)
from towline.workers.agents.review.models import (
    Inventory,
    Patch,
    ReviewInput,
    Source,
    ToolReport,
    compare,
    plural,
)
from towline.workers.agents.review.report import (
    findings_json,
    headline,
    report_markdown,
    verification_markdown,
    versions,
)
from towline.workers.agents.review.tools import TARGET_VERSION

LANES: Final = 4
"""Batches that run at once. What a killed worker had begun and not finished runs again: at most this many."""

BATCH_FILES: Final = 10
MOST_BATCHES: Final = 100

Tool = Activity[[str, str, list[str]], ToolReport]


class ReviewResult(Struct, frozen=True):
    """What a review answers. `report`, `findings` and `patch` are artifact ids.

    `applied_to` names the copy with the fixes, below the work folder of the worker's machine; it and `verified`
    are None when nothing was applied.
    """

    summary: str
    digest: str
    report: str
    findings: str
    patch: str | None = None
    applied_to: str | None = None
    verified: bool | None = None


@workflow(name="review", version="1", plan_first=True)
async def review(ctx: Context, request: ReviewInput) -> ReviewResult:
    """Review the Python files of a local folder, or of an uploaded archive."""
    run = ctx.info.run
    path = request.source.path
    name = "the upload" if isinstance(path, UnsetType) else PurePosixPath(path).name[:60] or "/"
    look, check, write, propose, fix, verify = await ctx.plan(
        "Look at the folder",
        "Run ruff and the compiler on every file",
        "Write the report",
        "Propose safe fixes",
        "Apply what is approved to a copy",
        "Run the tools on the copy",
    )

    async with working_on(ctx, look):
        stock = await frozen(ctx, run, request.source)

    async with working_on(ctx, check):
        before, seen = await run_tools(ctx, stock.copy, stock.python)
    found = headline(stock, before)

    async with working_on(ctx, write):
        report = await ctx.artifact("review.md", report_markdown(name, stock, before), "text/markdown")
        findings = await ctx.artifact("findings.json", findings_json(stock, before), "application/json")
    ctx.claim(f"{found}.", evidence=[report, findings, *seen])

    async with working_on(ctx, propose):
        proposed = await ctx.run(propose_fixes, run, stock.copy, stock.python)
    result = ReviewResult(found, stock.digest, report.id, findings.id)

    if proposed.artifact is None:
        ctx.claim("There is no safe fix to propose.", evidence=ctx.evidence(propose_fixes))
        return await nothing_applied(ctx, result, [fix, verify], "there is no safe fix to propose")

    result = replace(result, patch=proposed.artifact.id)
    await ctx.checkpoint(
        "The report is written, fixes are proposed",
        done=[found, size_of(proposed.patch)],
        next=["Decide on the fixes", "Apply them to a copy", "Run the tools on the copy"],
        evidence=[report, findings, proposed.artifact],
    )
    decision = await ctx.approval(
        f"Apply ruff's safe fixes to a copy of {name}?",
        proposal=proposal(name, stock, versions(before), proposed.patch, proposed.artifact),
    )
    if not decision.approved:
        ctx.claim(f"Nothing was applied: the fixes were {decision.outcome}.", evidence=[decision])
        return await nothing_applied(ctx, result, [fix, verify], f"the fixes were {decision.outcome}")

    async with working_on(ctx, fix):
        fixed = await ctx.run(apply_fixes, run, stock.copy, proposed.patch, proposed.patch.sha256)
    ctx.claim("The approved fixes, and no others, were applied to a copy.", [decision, ctx.evidence(apply_fixes)])

    async with working_on(ctx, verify):
        after, seen = await run_tools(ctx, fixed, stock.python)
        verdict = compare(before, after)
        proof = await ctx.artifact(
            "verification.md", verification_markdown(name, proposed.patch, verdict), "text/markdown"
        )
    word = "passed" if verdict.passed else "did not pass"
    if not verdict.passed:
        await ctx.step(verify, "failed", f"see verification.md: {proof.id}")
    ctx.claim(
        f"Verification {word}: {plural(verdict.before, 'finding')} before the fixes, {verdict.after:,} after.",
        evidence=[proof, *seen],
    )
    await ctx.run(tidy, run, fixed)
    summary = f"{found}. {size_of(proposed.patch)}, applied to a copy; verification {word}."
    return replace(result, summary=summary, applied_to=f"{run}/{fixed}", verified=verdict.passed)


async def frozen(ctx: Context, run: str, source: Source) -> Inventory:
    """What there is to review, in a copy that nobody edits meanwhile."""
    if isinstance(source.upload, UnsetType):
        assert not isinstance(source.path, UnsetType)
        return await ctx.run(take_stock, run, source.path)
    return await ctx.run(unpack_upload, run, source.upload)


async def nothing_applied(ctx: Context, result: ReviewResult, left: Sequence[PlanItem], why: str) -> ReviewResult:
    """End a review whose fixes stay a proposal."""
    for item in left:
        await ctx.step(item, "skipped", why)
    await ctx.run(tidy, ctx.info.run, None)
    return replace(result, summary=f"{result.summary}. Nothing was applied: {why}.")


async def run_tools(ctx: Context, copy: str, paths: Sequence[str]) -> tuple[list[ToolReport], list[Reference]]:
    """Run both tools on all files, a few batches at once: what they say, and where the log has it."""
    batches = in_batches(paths)
    calls = [(tool, batch) for batch in batches for tool in (lint, byte_compile)]
    earlier = {tool: len(ctx.evidence(tool)) for tool in (lint, byte_compile)}
    lanes = asyncio.Semaphore(LANES)
    done = 0

    async def call(tool: Tool, batch: list[str]) -> ToolReport:
        nonlocal done
        async with lanes:
            report = await ctx.run(tool, ctx.info.run, copy, batch)
        done += 1
        if done * 10 // len(calls) > (done - 1) * 10 // len(calls):
            await ctx.note(f"{done} of {len(calls)} batches checked", percent=100 * done // len(calls))
        return report

    reports = await asyncio.gather(*(call(tool, batch) for tool, batch in calls))
    return reports, [seen for tool, count in earlier.items() for seen in ctx.evidence(tool)[count:]]


@asynccontextmanager
async def working_on(ctx: Context, item: PlanItem) -> AsyncIterator[None]:
    """Show this step of the plan as active, then as done. A failure is shown too, with what to do next."""
    await ctx.step(item, "active")
    try:
        yield
    except ActivityError as error:
        await ctx.step(item, "failed", error.message)
        await ctx.checkpoint(f"Stopped: {item.title}", done=[], next=[f"{error.message}; then start a new review"])
        raise
    await ctx.step(item, "done")


def proposal(name: str, stock: Inventory, tools: Sequence[str], patch: Patch, diff: Artifact) -> Proposal:
    """What the people who decide are shown. The decision is bound to these very words, and so to the diff."""
    return Proposal(
        intent=f"Apply ruff's safe fixes to a copy of {name}: {size_of(patch)}.",
        lineage=[
            f"reviewed files: {stock.digest}",
            f"diff: artifact {diff.id}, sha256:{patch.sha256}",
            f"made with: {', '.join(tools)}; ruff's safe fixes only, for {TARGET_VERSION} and newer",
        ],
        permissions=["write a new copy in the work folder of this run", "run ruff and the compiler on it"],
        blast_radius=f"{plural(len(patch.files), 'file')} of a new copy. The reviewed folder is not written to.",
        rollback="Nothing to undo: delete the copy.",
    )


def size_of(patch: Patch) -> str:
    """How big the change is, in words."""
    return f"{plural(len(patch.files), 'changed file')}, {plural(patch.added, 'line')} added, {patch.removed:,} removed"


def in_batches(paths: Sequence[str]) -> list[list[str]]:
    """The files in batches: small ones, unless that would make too many of them."""
    size = max(BATCH_FILES, -(-len(paths) // MOST_BATCHES))
    return [list(paths[start : start + size]) for start in range(0, len(paths), size)]
