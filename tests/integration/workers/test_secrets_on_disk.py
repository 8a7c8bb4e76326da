"""A secret that an activity uses stands nowhere on disk: not in the append-only file, not among the payloads."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.server import StoreServer
from tests.support.waiting import wait_until
from tests.support.workers import stage
from towline.workers import Context, activity
from towline.workers.registry import Registry, Retry
from towline.workers.secrets import PREFIX, Secret

pytestmark = pytest.mark.store

CANARY = "c4nary-0n-d1sk"
KEPT = "kept-0n-d1sk"


def holding(folder: Path, text: str) -> list[str]:
    """Files below `folder` that hold `text`."""
    return [path.name for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


async def test_neither_the_append_only_file_nor_the_payloads_hold_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PREFIX + "MINE", CANARY)
    registry = Registry()
    used: list[str] = []

    async def use(secret: Secret) -> str:
        used.append(secret.reveal())
        activity.delta(f"with {CANARY[:6]}")
        activity.delta(f"{CANARY[6:]} done")
        activity.artifact("notes.txt", f"{KEPT} without the key", "text/plain")
        if len(used) == 1:
            raise ValueError(f"refused {secret.reveal()}")
        return KEPT

    uses: Any = registry.activity(use, effect="none", retry=Retry(attempts=2))

    async def body(ctx: Context) -> str:
        await ctx.note(f"with {Secret('MINE')}")
        result: str = await ctx.run(uses, Secret("MINE"))
        await ctx.publish("state", result)
        return result

    registry.workflow(name="uses")(body)
    # Compressed, a text could not be found again.
    plain = {"rdbcompression": "no", "aof-use-rdb-preamble": "no"}
    with StoreServer(tmp_path / "store", durable=True, settings=plain) as server:
        async with stage(server.url, tmp_path, registry) as workers:
            await workers.worker()
            run = await workers.start("uses")
            assert (await workers.ended(run)).type == "run.completed"
            client: Any = workers.store._client
            assert used == [CANARY] * 2
            assert holding(server.folder, KEPT), "the search finds what is there"
            assert holding(workers.payload_folder, KEPT)
            assert holding(tmp_path, CANARY) == []
            await client.bgrewriteaof()

            async def is_rewritten() -> bool:
                return int((await client.info("persistence"))["aof_rewrite_in_progress"]) == 0

            await wait_until(is_rewritten, "the append-only file to be rewritten")
        assert holding(server.folder, KEPT)
        assert holding(tmp_path, CANARY) == []
