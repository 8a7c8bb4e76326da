"""Payloads: by content, on disk before anyone names them, in folders that only we read."""

import hashlib
import os
from pathlib import Path

import pytest

from towline.protocol.store.payloads import MissingPayload, Payloads


@pytest.fixture
def payloads(tmp_path: Path) -> Payloads:
    return Payloads(tmp_path / "data" / "payloads")


async def test_what_was_put_comes_back_under_the_hash_of_its_content(payloads: Payloads) -> None:
    for data in (b"", b"hello", os.urandom(100_000)):
        name = await payloads.put(data)
        assert name == hashlib.sha256(data).hexdigest()
        assert await payloads.read(name) == data
        assert payloads.put_now(data) == name


async def test_folders_and_files_are_ours_alone(payloads: Payloads) -> None:
    path = payloads.path_of(await payloads.put(b"secret"))
    assert [oct(p.stat().st_mode & 0o777) for p in (payloads.root, path.parent, path)] == ["0o700", "0o700", "0o600"]
    assert [p.name for p in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "name", ["", "..", "../../etc/passwd", "a" * 63, "A" * 64, "g" * 64, "a" * 64 + "\n", "a" * 64]
)
async def test_no_name_leaves_the_folder(payloads: Payloads, name: str) -> None:
    with pytest.raises(MissingPayload):
        await payloads.read(name)


async def test_each_folder_is_synced_before_put_returns_also_for_a_repeat(
    payloads: Payloads, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = list[Path]()
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    for _ in range(2):
        path = payloads.path_of(await payloads.put(b"x"))
        assert {path.parent, payloads.root, payloads.root.parent} <= set(synced)
        synced.clear()


async def test_a_write_that_fails_leaves_nothing(payloads: Payloads, monkeypatch: pytest.MonkeyPatch) -> None:
    await payloads.put(b"first")

    def fails(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="No space"):
        await payloads.put(b"x")
    monkeypatch.undo()
    assert [p.name for p in payloads.root.rglob("*") if p.name.startswith(".")] == []
    with pytest.raises(MissingPayload):
        await payloads.read(hashlib.sha256(b"x").hexdigest())
