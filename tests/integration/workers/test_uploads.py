"""Uploads and large inputs in the hands of activities, on a real store and a real worker."""

import asyncio
import hashlib
import io
import os
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.workers import Stage
from towline.protocol.ids import random_id
from towline.protocol.limits import UPLOAD_MS
from towline.protocol.store.uploads import Upload
from towline.workers import Context, activity
from towline.workers.agents.review.workflow import review
from towline.workers.registry import Registry

pytestmark = pytest.mark.store


async def upload(workers: Stage, data: bytes) -> str:
    async def whole() -> AsyncIterator[bytes]:
        yield data

    ref = random_id("upl")
    stored = await workers.payloads.put_upload(ref, whole(), limit_bytes=len(data))
    made = Upload("ana", stored.sha256, stored.size, "application/zip", workers.store.now_ms() + UPLOAD_MS)
    await workers.store.keep_upload(ref, made)
    return ref


async def test_an_activity_gets_the_bytes_of_its_run_and_of_no_other(
    workers: Stage, registry: Registry, tmp_path: Path
) -> None:
    data, foreign = os.urandom(2_000_000), await upload(workers, b"another's")
    said: list[str] = []

    def in_a_thread(ref: str) -> str:
        path = tmp_path / f"thread-{len(said)}"
        try:
            size = activity.fetch_upload(ref, path)
        except LookupError as error:
            said.append(str(error))
            return ""
        content = path.read_bytes()
        assert len(content) == size
        return hashlib.sha256(content).hexdigest()

    async def on_the_loop(ref: str) -> str:
        path = tmp_path / "loop"
        with pytest.raises(RuntimeError, match="to_thread"):
            activity.fetch_upload(ref, path)
        await asyncio.to_thread(activity.fetch_upload, ref, path)
        return hashlib.sha256(await asyncio.to_thread(path.read_bytes)).hexdigest()

    plain = registry.activity(in_a_thread, effect="read")
    coroutine = registry.activity(on_the_loop, effect="read")

    async def body(ctx: Context, given: dict[str, str]) -> list[str]:
        return [
            await ctx.run(plain, given["upload"]),
            await ctx.run(coroutine, given["upload"]),
            await ctx.run(plain, foreign),
        ]

    registry.workflow(name="reads")(body)
    await workers.worker()
    run = await workers.start("reads", {"upload": await upload(workers, data)})
    sha256 = hashlib.sha256(data).hexdigest()
    assert await workers.result(run) == [sha256, sha256, ""]
    assert said == ["the run was given no such upload"]


async def test_an_input_that_is_too_large_for_the_log_reaches_the_code_whole(
    workers: Stage, registry: Registry
) -> None:
    async def body(ctx: Context, given: dict[str, str]) -> int:
        return len(given["text"])

    registry.workflow(name="large")(body)
    await workers.worker()
    run = await workers.start("large", {"text": "é" * 200_000})
    assert await workers.result(run) == 200_000
    assert (await workers.status(run)).input_ref is not None


async def test_an_uploaded_archive_is_reviewed(
    workers: Stage, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOWLINE_WORK_DIR", str(tmp_path / "work"))
    registry.workflows[review.name, review.version] = review
    await workers.worker()
    for content, ends in ((b"import os\nx = 1\n", "tool.finished"), (None, "tool.failed")):
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            archive.writestr("shop/a.py" if content else "../a.py", content or b"x = 1\n")
        run = await workers.start("review", {"source": {"upload": await upload(workers, packed.getvalue())}})
        await workers.wait_for(run, ends)
        if content:
            await workers.approve(run)
            assert (await workers.result(run))["verified"] is True
        else:
            failed = await workers.wait_for(run, "run.failed")
            assert "leads out" in failed.data["error"]["message"]
    assert not (tmp_path / "a.py").exists()
