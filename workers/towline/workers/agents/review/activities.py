"""The activities of a review: what touches the disk, each safe to run again after a crash.

Each takes the run's id (it finds the run's own folder by it) and small values, and answers a small value; what
is large goes into an artifact. They hand work to the pure modules and add nothing of their own but the
check of the path, which is made again here because it was first made somewhere else, earlier.
"""

from datetime import timedelta
from typing import Final

from msgspec import Struct

from towline.protocol.source_paths import SourcePathError, allowed_roots, resolve_source
from towline.workers import Artifact, Retry, activity
from towline.workers.agents.review import archives, fixes, inventory, tools
from towline.workers.agents.review.copies import RunFolder
from towline.workers.agents.review.models import Inventory, Patch, ReviewError, ToolReport

RETRY: Final = Retry(attempts=3, never=(ReviewError, SourcePathError))

START_TO_CLOSE: Final = timedelta(minutes=10)
"""More than a batch takes of which every file runs into the tools' own time limits."""


@activity(retry=RETRY, effect="read", start_to_close=START_TO_CLOSE)
def take_stock(run: str, path: str) -> Inventory:
    """List what the folder holds and freeze its Python files into a copy."""
    return inventory.take_inventory(resolve_source(path, allowed_roots()), RunFolder.of_run(run))


@activity(retry=RETRY, effect="read", start_to_close=START_TO_CLOSE)
def unpack_upload(run: str, upload: str) -> Inventory:
    """Unpack an uploaded archive and do with it what `take_stock` does with a folder."""
    folder = RunFolder.of_run(run)
    with folder.building() as place:
        archive = place / "archive"
        try:
            activity.fetch_upload(upload, archive)
        except LookupError:
            raise ReviewError("the run was given no such upload; send the archive again and start anew") from None
        archives.unpack(archive, place / "unpacked")
        return inventory.take_inventory(place / "unpacked", folder)


@activity(retry=RETRY, effect="read", start_to_close=START_TO_CLOSE)
def lint(run: str, copy: str, paths: list[str]) -> ToolReport:
    """Run ruff on a batch of files."""
    return tools.lint(RunFolder.of_run(run).get(copy), paths)


@activity(retry=RETRY, effect="read", start_to_close=START_TO_CLOSE)
def byte_compile(run: str, copy: str, paths: list[str]) -> ToolReport:
    """Compile a batch of files to byte code, without keeping it."""
    return tools.byte_compile(RunFolder.of_run(run).get(copy), paths)


class Proposed(Struct, frozen=True):
    """A proposed change, and the artifact that shows it; None if there is nothing to change."""

    patch: Patch
    artifact: Artifact | None


@activity(retry=RETRY, effect="read", start_to_close=START_TO_CLOSE)
def propose_fixes(run: str, copy: str, paths: list[str]) -> Proposed:
    """Let ruff fix a copy of the copy, and publish the difference."""
    patch, diff = fixes.propose(RunFolder.of_run(run), copy, paths)
    return Proposed(patch, activity.artifact("fixes.patch", diff, "text/x-diff") if diff else None)


@activity(retry=RETRY, effect="write", idempotent=True, start_to_close=START_TO_CLOSE)
def apply_fixes(run: str, copy: str, patch: Patch, approved_sha256: str) -> str:
    """Make the copy that has the approved fixes; its name. Running twice makes it once."""
    return fixes.apply(RunFolder.of_run(run), copy, patch, approved_sha256)


@activity(retry=RETRY, effect="write", idempotent=True, start_to_close=START_TO_CLOSE)
def tidy(run: str, keep: str | None) -> None:
    """Remove the copies that are no longer needed."""
    RunFolder.of_run(run).tidy(keep)
