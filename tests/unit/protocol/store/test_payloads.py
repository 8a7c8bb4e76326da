"""Payloads: by content, durable before anyone names them, the same in a folder and in an object store."""

import asyncio
import hashlib
import io
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from towline.protocol.ids import random_id
from towline.protocol.store.api import StoreFull, StoreUnavailable
from towline.protocol.store.payload_folder import Folder
from towline.protocol.store.payload_objects import Objects
from towline.protocol.store.payload_storage import Storage
from towline.protocol.store.payloads import (
    BadPayload,
    MissingPayload,
    Payloads,
    PayloadTooLarge,
    RunPayloads,
    open_payloads,
    run_folder,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "data" / "payloads"


@pytest.fixture(params=["folder", "memory:///", "file:", "TOWLINE_TEST_PAYLOADS_URL"])
def storage(request: pytest.FixtureRequest, root: Path) -> Storage:
    match request.param:
        case "folder":
            return Folder(root)
        case "file:":
            root.mkdir(parents=True)
            return Objects.at(f"file://{root}")
        case "memory:///":
            return Objects.at("memory:///")
        case variable:
            if not os.environ.get(variable):
                pytest.skip(f"{variable} names no object store to test on")
            return Objects.at(os.environ[variable])


@pytest.fixture
def everything(storage: Storage) -> Payloads:
    return Payloads(storage)


@pytest.fixture
def payloads(everything: Payloads) -> RunPayloads:
    return everything.of("r1")


@pytest.fixture
def local(root: Path) -> RunPayloads:
    return Payloads(root).of("r1")


def place_of(root: Path, sha256: str) -> Path:
    return root / run_folder("r1") / sha256


async def chunks_of(data: bytes, size: int = 70_000) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


async def all_of(pieces: AsyncIterator[bytes]) -> bytes:
    return b"".join([piece async for piece in pieces])


def files_below(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if not path.is_dir())


async def test_what_was_put_comes_back_under_the_hash_of_its_content(payloads: RunPayloads) -> None:
    for data in (b"", b"hello", os.urandom(100_000), os.urandom(6_000_000)):
        name = await payloads.put(data)
        assert name == hashlib.sha256(data).hexdigest()
        assert await payloads.read(name) == data
        assert await payloads.size(name) == len(data)
        assert payloads.put_now(data) == name
        target = io.BytesIO()
        assert payloads.fetch_now(name, target) == len(data)
        assert target.getvalue() == data


async def test_any_part_can_be_read(payloads: RunPayloads) -> None:
    data = os.urandom(700_000)
    name = await payloads.put(data)
    for first, length in ((0, 700_000), (0, 1), (699_999, 1), (5, 600_001), (300_000, 0)):
        assert await all_of(payloads.stream(name, first, length)) == data[first : first + length]


async def test_a_stream_is_stored_when_it_is_what_was_said(payloads: RunPayloads) -> None:
    data = os.urandom(3_000_000)
    sha256 = hashlib.sha256(data).hexdigest()
    stored = await payloads.put_stream(chunks_of(data), limit_bytes=len(data), sha256=sha256)
    assert (stored.sha256, stored.size) == (sha256, len(data))
    assert await payloads.read(sha256) == data


async def test_a_stream_that_is_not_what_was_said_leaves_nothing(payloads: RunPayloads, root: Path) -> None:
    data = os.urandom(3_000_000)
    sha256 = hashlib.sha256(data).hexdigest()

    async def breaks_off() -> AsyncIterator[bytes]:
        async for chunk in chunks_of(data[: len(data) * 99 // 100]):
            yield chunk
        raise ConnectionResetError

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield bytes(70_000)

    with pytest.raises(BadPayload):
        await payloads.put_stream(chunks_of(data), limit_bytes=len(data), sha256="0" * 64)
    with pytest.raises(PayloadTooLarge):
        await payloads.put_stream(chunks_of(data), limit_bytes=len(data) - 1, sha256=sha256)
    with pytest.raises(PayloadTooLarge):
        await payloads.put_stream(endless(), limit_bytes=2_000_000)
    with pytest.raises(ConnectionResetError):
        await payloads.put_stream(breaks_off(), limit_bytes=len(data))
    with pytest.raises(MissingPayload):
        await payloads.size(sha256)
    assert files_below(root) == []


async def test_a_cancelled_stream_leaves_nothing(local: RunPayloads, root: Path) -> None:
    waits = asyncio.Event()

    async def stalls() -> AsyncIterator[bytes]:
        yield bytes(2_000_000)
        waits.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(local.put_stream(stalls(), limit_bytes=2**30))
    await waits.wait()
    assert len(files_below(root)) == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert files_below(root) == []


async def test_an_upload_is_bytes_of_its_own_until_it_is_adopted(everything: Payloads, payloads: RunPayloads) -> None:
    ref, data = random_id("upl"), os.urandom(100_000)
    stored = await everything.put_upload(ref, chunks_of(data), limit_bytes=2**20)
    with pytest.raises(MissingPayload):
        await payloads.size(stored.sha256)
    for _ in range(2):
        await payloads.adopt_upload(ref, stored.sha256)
    await everything.remove_upload(ref)
    await everything.remove_upload(ref)
    assert await payloads.read(stored.sha256) == data
    await payloads.adopt_upload(ref, stored.sha256)  # it is there already
    with pytest.raises(MissingPayload):
        await payloads.adopt_upload(ref, "1" * 64)
    for bad in ("upl_../../x", "upl_", random_id("run"), "../" + ref):
        with pytest.raises(MissingPayload):
            await payloads.adopt_upload(bad, "1" * 64)


async def test_uploads_that_nobody_took_are_swept_and_nothing_else(everything: Payloads, payloads: RunPayloads) -> None:
    ref = random_id("upl")
    assert await everything.sweep(0) == 0
    stored = await everything.put_upload(ref, chunks_of(b"upload"), limit_bytes=100)
    kept = await payloads.put(b"kept")
    assert await everything.sweep(3600) == 0
    assert await everything.sweep(-3600) == 1
    assert await payloads.read(kept) == b"kept"
    with pytest.raises(MissingPayload):
        await payloads.adopt_upload(ref, stored.sha256)


@pytest.mark.parametrize(
    "name", ["", "..", "../../etc/passwd", "a" * 63, "A" * 64, "g" * 64, "a" * 64 + "\n", "a" * 64]
)
async def test_no_name_leaves_the_folder(payloads: RunPayloads, name: str) -> None:
    with pytest.raises(MissingPayload):
        await payloads.read(name)
    with pytest.raises(MissingPayload):
        await payloads.size(name)
    with pytest.raises(MissingPayload):
        await all_of(payloads.stream(name, 0, 1))


def test_an_address_says_where_payloads_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    made = open_payloads(f"file://{tmp_path}/some%20where")
    made.of("r1").put_now(b"x")
    assert files_below(tmp_path / "some where") != []  # our own folder: the library's does not sync
    for url in ("s3://bucket/prefix", "gs://bucket", "az://account/container"):
        assert isinstance(open_payloads(url), Payloads)
    for url in ("memory:///", "file:relative", "file://host/x", "ftp://x/y", "bucket", "s3:", ""):
        with pytest.raises(ValueError, match="address"):
            open_payloads(url)


async def test_a_store_that_does_not_answer_is_said_without_its_address(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "canary",
        "AWS_REGION": "here",
    }.items():
        monkeypatch.setenv(name, value)
    payloads = open_payloads("s3://bucket").of("r1")
    with pytest.raises(StoreUnavailable) as caught:
        await payloads.put(b"x")
    assert "error sending request" in caplog.text  # it was tried, though not encrypted: AWS_ALLOW_HTTP
    assert "canary" not in caplog.text
    assert "127.0.0.1" not in str(caught.value)
    assert caught.value.__cause__ is None


async def test_the_bytes_of_one_run_go_and_those_of_others_stay(everything: Payloads, payloads: RunPayloads) -> None:
    sha256, ref = await payloads.put(b"shared"), random_id("upl")
    others = [everything.of(run) for run in ("R1", "r10", "r", "r1.x", "uploads")]
    for other in others:
        assert await other.put(b"shared") == sha256
    await everything.put_upload(ref, chunks_of(b"upload"), limit_bytes=100)
    await payloads.put(b"never named")
    for _ in range(2):
        await payloads.remove_all()
        with pytest.raises(MissingPayload):
            await payloads.size(sha256)
    for other in others:
        assert await other.read(sha256) == b"shared"
    assert await payloads.put(b"shared") == sha256
    await payloads.adopt_upload(ref, hashlib.sha256(b"upload").hexdigest())
    assert set(await everything.runs()) - {"r1"} == {"R1", "r10", "r", "r1.x", "uploads"}
    with pytest.raises(MissingPayload):
        everything.of("../r1")


# What only the folder promises.


async def test_folders_and_files_are_ours_alone(local: RunPayloads, root: Path) -> None:
    path = place_of(root, await local.put(b"secret"))
    assert [oct(p.stat().st_mode & 0o777) for p in (root, path.parent, path)] == ["0o700", "0o700", "0o600"]
    assert [p.name for p in path.parent.iterdir()] == [path.name]


async def test_each_folder_is_synced_before_put_returns_also_for_a_repeat(
    local: RunPayloads, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = list[Path]()
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    for _ in range(2):
        path = place_of(root, await local.put(b"x"))
        assert {path.parent, root, root.parent} <= set(synced)
        synced.clear()
    ref = random_id("upl")
    stored = await Payloads(root).put_upload(ref, chunks_of(b"upload"), limit_bytes=10)
    synced.clear()
    await local.adopt_upload(ref, stored.sha256)
    assert {place_of(root, stored.sha256).parent, root} <= set(synced)


async def test_a_write_that_fails_leaves_nothing(
    local: RunPayloads, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await local.put(b"first")

    def fails(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(StoreFull):
        await local.put(b"x")
    monkeypatch.undo()
    assert len(files_below(root)) == 1
    with pytest.raises(MissingPayload):
        await local.read(hashlib.sha256(b"x").hexdigest())


async def test_a_planted_link_is_neither_read_nor_written_through(
    local: RunPayloads, root: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    sha256 = hashlib.sha256(b"x").hexdigest()
    (outside / sha256).write_bytes(b"x")
    await Payloads(root).of("first").put(b"first")

    (root / run_folder("r1")).symlink_to(outside, target_is_directory=True)
    with pytest.raises(MissingPayload):
        await local.read(sha256)
    with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
        await local.put(b"x")
    assert [path.name for path in outside.iterdir()] == [sha256]

    (root / run_folder("r1")).unlink()
    (root / run_folder("r1")).mkdir()
    place_of(root, sha256).symlink_to(outside / sha256)
    with pytest.raises(MissingPayload):
        await local.size(sha256)
    with pytest.raises(MissingPayload):
        await all_of(local.stream(sha256, 0, 1))
    assert await local.put(b"x") == sha256  # the link is replaced
    assert place_of(root, sha256).is_file()
    assert not place_of(root, sha256).is_symlink()
    assert (outside / sha256).read_bytes() == b"x"

    fifo = hashlib.sha256(b"fifo").hexdigest()
    os.mkfifo(place_of(root, fifo))
    with pytest.raises(MissingPayload):
        await local.read(fifo)

    ref = random_id("upl")
    await Payloads(root).put_upload(ref, chunks_of(b"upload"), limit_bytes=10)
    (root / "uploads" / ref).unlink()
    (root / "uploads" / ref).symlink_to(outside / sha256)
    with pytest.raises(MissingPayload):
        await local.adopt_upload(ref, "2" * 64)


def test_a_link_in_the_place_of_a_run_is_removed_and_not_followed(
    local: RunPayloads, root: Path, tmp_path: Path
) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "kept").touch()
    root.mkdir(parents=True)
    (root / run_folder("r1")).symlink_to(tmp_path / "outside", target_is_directory=True)
    asyncio.run(local.remove_all())
    assert list(root.iterdir()) == []
    assert (tmp_path / "outside" / "kept").exists()
    local.put_now(b"x")
    asyncio.run(local.remove_all())
    assert list(root.iterdir()) == []


async def test_damaged_bytes_are_not_handed_out_as_whole(local: RunPayloads, root: Path) -> None:
    sha256 = await local.put(b"right")
    place_of(root, sha256).write_bytes(b"wrong")
    with pytest.raises(BadPayload):
        await local.read(sha256)
    with pytest.raises(BadPayload):
        local.fetch_now(sha256, io.BytesIO())


async def test_what_a_killed_process_left_is_tidied(local: RunPayloads, root: Path) -> None:
    await local.put(b"x")
    left = root / ".0123456789abcdef.part"
    left.write_bytes(b"half")
    await Payloads(root).sweep(3600)
    assert left.exists()
    await Payloads(root).sweep(-3600)
    assert len(files_below(root)) == 1
