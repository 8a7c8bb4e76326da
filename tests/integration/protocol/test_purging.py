"""Deleting a run: no byte of it stays, wherever whoever deletes it dies, and other runs keep theirs."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.lab import ALICE, CREATED, Lab, approval, grant, note, open_lab
from tests.support.server import StoreServer
from tests.support.waiting import wait_until
from towline.protocol import event_data as d
from towline.protocol.codec import NewEntry
from towline.protocol.deltas import Piece
from towline.protocol.errors import ProblemError
from towline.protocol.events import Actor
from towline.protocol.ids import random_id
from towline.protocol.store import api
from towline.protocol.store.given import settle, take_input
from towline.protocol.store.payloads import MissingPayload, Payloads
from towline.protocol.store.purges import Purges
from towline.protocol.store.purging import collect_late, finish_purges, purge_run
from towline.protocol.store.spilling import spill
from towline.protocol.store.uploads import Upload, Uploads

CANARY = "canary7c1e9b52"
RUN = "r1"
DEATHS: list[tuple[type, str, str, str]] = [
    (Payloads, "remove_upload", "before", "repeat"),
    (Uploads, "forget_upload", "before", "repeat"),
    (Purges, "drop_ended", "before", "repeat"),
    (Purges, "bury_run", "before", "repeat"),
    (Purges, "bury_run", "after", "repeat"),
    (Purges, "bury_run", "after", "sweep"),
    (Purges, "forget_purged", "before", "sweep"),
    (Purges, "forget_purged", "after", "sweep"),
]
"""Who dies before or after what, and who comes to help."""


class Died(Exception):
    pass


@pytest.fixture
def payloads(tmp_path: Path) -> Payloads:
    return Payloads(tmp_path / "payloads")


async def upload(lab: Lab, payloads: Payloads, content: bytes, ref: str = "") -> str:
    async def whole() -> AsyncIterator[bytes]:
        yield content

    ref = ref or random_id("upl")
    stored = await payloads.put_upload(ref, whole(), limit_bytes=1000)
    kept = Upload("alice", stored.sha256, stored.size, "text/plain", lab.store.now_ms() + 10**6)
    await lab.store.keep_upload(ref, kept)
    return ref


async def lived(lab: Lab, payloads: Payloads, run: str = RUN, text: str = CANARY) -> None:
    """A run that has ended, with `text` wherever a run can hold any."""
    ref = await upload(lab, payloads, text.encode())
    value = {"text": text * 10_000, "upload": ref}
    given = await take_input(lab.store, payloads, value, subject="alice", run=run)
    created = replace(CREATED, headline=text, labels={"about": text}, input_ref=given.input_ref)
    await lab.create(
        run, created=NewEntry("run.created", ALICE, created, private=given.private),
        side={**given.side, "g|user:bob": "viewer"}, listed=["r|bob|"],
    )  # fmt: skip
    await settle(lab.store, payloads, given, run)
    await upload(lab, payloads, b"another's")
    # As if the starter died before it took the upload from its sender.
    await upload(lab, payloads, text.encode(), ref)
    await lab.store.keep_upload(ref, Upload("alice", "0" * 64, 1, text, lab.store.now_ms() + 10**6, run))
    lease = await lab.claim(run, holder=text)
    sha256 = await payloads.of(run).put(text.encode())
    made = d.ArtifactCreated(artifact=text, name=text, media_type="text/plain", size=1, sha256=sha256)
    large = d.RunCompleted(summary=text, claims=[], verified=None, result=text * 10_000)
    question, side = approval(text, expires_at=None)
    agent = Actor("agent", "wf:review")
    piece = Piece("m1", 1, 0, text)
    await lab.store.publish_pieces(run, lease.fence, [piece], [piece])
    await lab.store.renew([api.Lease(run, lease.fence, text)])
    await lab.store.commit(
        lab.commit(
            lease, 1, note(text, private=text.encode()), NewEntry("artifact.created", agent, made), question,
            side={**side, f"a|{text}": text}, arm=[api.Timer("timer", text, 10**15)], inbox_add={text: ["user:alice"]},
        )
    )  # fmt: skip
    await lab.accept(run, command_id=text, fingerprint=text)
    await lab.store.change_access(grant(run, "user:eve", "owner", listed=["r|eve|", "ro|user%3Aeve|alice|"]))
    loaded = await lab.store.load(run)
    last = await spill(NewEntry("run.completed", agent, large, private=text.encode() * 10_000), payloads.of(run))
    await lab.store.close(lab.commit(lease, 2, last, seen=await lab.head(run), snapshot=loaded.run))


async def stored(lab: Lab) -> str:
    """Every key of the store with its value."""
    keys = [key async for key in lab.raw.scan_iter(count=10_000)]
    async with lab.raw.pipeline(transaction=False) as pipe:
        for key in keys:
            pipe.type(key)
        kinds = await pipe.execute()
        for key, kind in zip(keys, kinds, strict=True):
            match kind:
                case b"hash":
                    pipe.hgetall(key)
                case b"zset":
                    pipe.zrange(key, 0, -1, withscores=True)
                case b"stream":
                    pipe.xrange(key)
                case _:
                    pipe.get(key)
        return repr([keys, await pipe.execute()])


def files(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in folder.rglob("*"):
        if path.is_file():
            yield path.name, path.read_bytes()


def holding(folder: Path) -> list[str]:
    """The files with the canary in them, or in their name."""
    return [name for name, content in files(folder) if CANARY in name or CANARY.encode() in content]


def is_clean(everything: str, payloads: Path) -> None:
    assert CANARY not in everything
    assert f"|{RUN}" not in everything, "it is still listed, or a timer waits"
    assert f"b'{RUN}', -1.0" not in everything
    assert holding(payloads) == []
    assert not any(RUN in path.name for path in payloads.iterdir())


async def test_no_byte_of_it_is_left_in_the_append_only_file_or_among_the_payloads(
    tmp_path: Path, payloads: Payloads
) -> None:
    # Compressed, a text could not be found again.
    plain = {"rdbcompression": "no", "aof-use-rdb-preamble": "no"}
    with StoreServer(tmp_path / "store", durable=True, settings=plain) as server:
        async with open_lab(server.url) as lab:
            await lived(lab, payloads)
            await lived(lab, payloads, "other", "kept5d02")
            kept = sorted(each for each in files(tmp_path / "payloads" / "uploads") if each[1] != CANARY.encode())
            assert holding(server.folder / "appendonlydir")
            assert len(holding(tmp_path / "payloads")) >= 4
            await purge_run(lab.store, payloads, RUN, by="op")
            is_clean(await stored(lab), tmp_path / "payloads")
            await lab.raw.bgrewriteaof()

            async def is_rewritten() -> bool:
                return await asyncio.to_thread(holding, server.folder) == []

            await wait_until(is_rewritten, "the append-only file to be rewritten without it")
            # Nobody else lost anything.
            assert any(b"kept5d02" in content for _, content in files(server.folder / "appendonlydir"))
            assert sum(b"kept5d02" in content for _, content in files(tmp_path / "payloads")) >= 3
            assert sorted(files(tmp_path / "payloads" / "uploads")) == kept


@pytest.mark.parametrize(("kind", "step", "side", "helper"), DEATHS)
async def test_wherever_it_dies_it_can_be_ended(
    redis_url: str, tmp_path: Path, payloads: Payloads, monkeypatch: pytest.MonkeyPatch,
    kind: type, step: str, side: str, helper: str,
) -> None:  # fmt: skip
    async with open_lab(redis_url) as lab:
        await lived(lab, payloads)
        real = getattr(kind, step)

        async def dies(*args: Any, **more: Any) -> None:
            if side == "after":
                await real(*args, **more)
            raise Died

        monkeypatch.setattr(kind, step, dies)
        with pytest.raises(Died):
            await purge_run(lab.store, payloads, RUN, by="op")
        monkeypatch.undo()
        is_buried = side == "after" or step == "forget_purged"
        try:
            assert (await lab.store.load(RUN)).run.headline == CANARY
            assert not is_buried
            assert await finish_purges(lab.store, payloads) == 0
            assert (await lab.store.facts(RUN)).sealed
        except api.RunGone:
            assert is_buried
            assert CANARY not in await stored(lab)
        if helper == "sweep":
            is_done = (step, side) == ("forget_purged", "after")
            assert await finish_purges(lab.store, payloads) == (0 if is_done else 1)
            is_clean(await stored(lab), tmp_path / "payloads")
        await purge_run(lab.store, payloads, RUN, by="op")
        is_clean(await stored(lab), tmp_path / "payloads")
        await purge_run(lab.store, payloads, RUN, by="op")


async def test_a_change_of_access_in_between_is_not_lost(
    redis_url: str, payloads: Payloads, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_lab(redis_url) as lab:
        await lived(lab, payloads)
        real, raced = Purges.bury_run, list[str]()

        async def race(store: Any, run: str, **more: Any) -> None:
            if not raced:
                raced.append(run)
                await lab.store.change_access(grant(run, "user:zed", "viewer", "1", listed=["r|zed|"]))
            await real(store, run, **more)

        monkeypatch.setattr(Purges, "bury_run", race)
        await purge_run(lab.store, payloads, RUN, by="op")
        with pytest.raises(api.RunGone) as caught:
            await lab.store.standing(RUN, ["g|user:zed"])
        assert caught.value.fields == {"g|user:zed": "viewer"}
        assert f"|{RUN}" not in await stored(lab)


async def test_a_run_that_goes_on_is_not_touched(redis_url: str, payloads: Payloads) -> None:
    async with open_lab(redis_url) as lab:
        await lab.held()
        async with lab.unwritten():
            with pytest.raises(ProblemError) as caught:
                await purge_run(lab.store, payloads, RUN, by="op")
        assert (caught.value.problem.code, caught.value.problem.field) == ("conflict", "status")
        with pytest.raises(api.NoRun):
            await purge_run(lab.store, payloads, "none", by="op")


async def test_bytes_that_come_after_the_end_are_collected_and_no_others(redis_url: str, payloads: Payloads) -> None:
    async with open_lab(redis_url) as lab:
        await lived(lab, payloads)
        await lab.create("alive")
        await purge_run(lab.store, payloads, RUN, by="op")
        kept = {run: await payloads.of(run).put(b"late") for run in (RUN, "alive", "anothers-store")}
        assert await finish_purges(lab.store, payloads) == 0
        assert await collect_late(lab.store, payloads) == 1
        with pytest.raises(MissingPayload):
            await payloads.of(RUN).size(kept[RUN])
        for run in ("alive", "anothers-store"):
            assert await payloads.of(run).read(kept[run]) == b"late"
        assert await collect_late(lab.store, payloads) == 0
