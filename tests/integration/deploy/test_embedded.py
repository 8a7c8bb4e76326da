"""The embedded store: data survives, one owner, one server, nobody else gets in."""

import contextlib
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import redis

from tests.support.waiting import wait_until_sync
from towline.deploy.embedded import EmbeddedStore, StoreFailed, StoreLocked, url_of

OWNER = """
import sys
from pathlib import Path
from towline.deploy.embedded import EmbeddedStore
store = EmbeddedStore(Path(sys.argv[1])).start()
print(store.pid, store.url, flush=True)
sys.stdin.read()
store.stop()
"""


class Owner:
    """Another process that owns a data folder until its input ends, or until it is killed."""

    def __init__(self, data: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWNER, data], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        pid, self.url = self.process.stdout.readline().split()
        self.server = psutil.Process(int(pid))

    def close(self) -> None:
        self.process.communicate(timeout=30)

    def kill(self) -> None:
        self.process.kill()
        self.close()


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    owner = Owner(tmp_path / "data")
    yield owner
    owner.close()
    with EmbeddedStore(tmp_path / "data"):
        pass  # whatever a killed owner left running ends here
    assert not lives(owner.server)


def lives(process: psutil.Process) -> bool:
    """Whether it still runs; a zombie that its new parent has not yet collected does not."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


def connect(store: EmbeddedStore | str) -> redis.Redis:
    return redis.Redis.from_url(store if isinstance(store, str) else store.url, decode_responses=True)


def test_data_survives_a_restart_and_a_kill(tmp_path: Path) -> None:
    with EmbeddedStore(tmp_path) as store, connect(store) as client:
        client.set("first", "1")
    with EmbeddedStore(tmp_path) as store:
        with connect(store) as client:
            assert client.get("first") == "1"
            client.set("second", "2")
        url, pid = store.url, store.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_until_sync(lambda: store.poll() is not None, "the killed server to be gone")
        assert store.poll() == -signal.SIGKILL
        assert store.ensure_running()
        assert not store.ensure_running()
        assert store.url == url
        assert store.pid != pid
        with connect(store) as client:
            assert client.mget("first", "second") == ["1", "2"]


def test_it_is_started_so_that_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    with EmbeddedStore(tmp_path) as store, connect(store) as client:
        found = {
            name: client.config_get(name)[name]
            for name in ("appendonly", "appendfsync", "maxmemory-policy", "save", "port")
        }
        assert found == {
            "appendonly": "yes",
            "appendfsync": "always",
            "maxmemory-policy": "noeviction",
            "save": "",
            "port": "0",
        }
        assert int(client.config_get("maxmemory")["maxmemory"] or 0) > 64 * 1024**2


def test_nobody_else_gets_in(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "store").mkdir(parents=True, mode=0o755)
    with EmbeddedStore(data) as store:
        assert stat.S_IMODE((data / "store").stat().st_mode) == 0o700
        assert store.pid is not None
        assert psutil.Process(store.pid).net_connections(kind="inet") == []
    with EmbeddedStore(tmp_path / "new"):
        assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700


def test_stop_leaves_no_process_and_frees_the_folder(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path).start()
    assert store.pid is not None
    server = psutil.Process(store.pid)
    store.stop()
    store.stop()
    assert store.pid is None
    assert not lives(server)
    with EmbeddedStore(tmp_path):
        pass


def test_a_second_owner_is_refused_with_the_pid_of_the_first(tmp_path: Path, owner: Owner) -> None:
    with pytest.raises(StoreLocked) as refusal:
        EmbeddedStore(tmp_path / "data").start()
    assert refusal.value.pid == owner.process.pid
    assert f"in use by process {owner.process.pid}" in str(refusal.value)
    assert "\n" not in str(refusal.value)
    with connect(owner.url) as client:
        assert client.ping()


@pytest.mark.parametrize("state", ["running", "stopped"])
def test_the_server_of_a_killed_owner_is_ended_before_another_starts(tmp_path: Path, owner: Owner, state: str) -> None:
    with connect(owner.url) as client:
        client.set("kept", "yes")
    owner.kill()
    assert lives(owner.server), "the server outlives its owner, which is what this test is about"
    if state == "stopped":
        owner.server.suspend()  # answers nobody, and SIGTERM does not end it either
    with EmbeddedStore(tmp_path / "data", stop_timeout_s=0.5) as store:
        assert not lives(owner.server)
        with connect(store) as client:
            assert client.get("kept") == "yes"


def test_a_server_that_cannot_be_found_still_keeps_others_out(tmp_path: Path, owner: Owner) -> None:
    owner.kill()
    # No socket and no pid file, as between the start of a server and its first breath.
    (tmp_path / "data" / "store" / "store.sock").unlink()
    (tmp_path / "data" / "store" / "server.pid").unlink()
    with pytest.raises(StoreFailed, match="still holds"):
        EmbeddedStore(tmp_path / "data", stop_timeout_s=0.2).start()
    assert lives(owner.server)
    owner.server.terminate()


def test_a_stale_pid_file_ends_no_stranger(tmp_path: Path) -> None:
    stranger = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    try:
        (tmp_path / "store").mkdir()
        (tmp_path / "store" / "server.pid").write_text(f"{stranger.pid}\n")
        with EmbeddedStore(tmp_path):
            pass
        assert stranger.poll() is None
    finally:
        stranger.communicate(timeout=30)


def test_two_threads_that_race_for_a_folder_start_one_server(tmp_path: Path) -> None:
    outcomes = list[EmbeddedStore | StoreLocked]()
    barrier = threading.Barrier(2)

    def race() -> None:
        barrier.wait()
        try:
            outcomes.append(EmbeddedStore(tmp_path).start())
        except StoreLocked as refusal:
            outcomes.append(refusal)

    threads = [threading.Thread(target=race) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stores = [outcome for outcome in outcomes if isinstance(outcome, EmbeddedStore)]
    for store in stores:
        store.stop()
    assert len(outcomes) == 2
    assert len(stores) == 1


@pytest.mark.parametrize("name", ["d" * 120, 'a "quoted" \\ name with spaces % and é'])
def test_any_path_will_do(tmp_path: Path, name: str) -> None:
    data = tmp_path / name
    with EmbeddedStore(data) as store:
        socket_folder = store._socket_path.parent
        assert stat.S_IMODE(socket_folder.stat().st_mode) == 0o700
        with connect(store) as client:
            client.set("kept", "yes")
        assert url_of(data) == store.url
        assert store.pid is not None
        os.kill(store.pid, signal.SIGKILL)
        wait_until_sync(lambda: store.poll() is not None, "the killed server to be gone")
        store.ensure_running()
        assert url_of(data) == store.url
    assert socket_folder.exists() == (socket_folder.parent == data)
    with EmbeddedStore(data) as store, connect(store) as client:
        assert client.get("kept") == "yes"


def test_others_find_the_store_by_its_folder(tmp_path: Path) -> None:
    with pytest.raises(StoreFailed, match="towline dev --data"):
        url_of(tmp_path)
    with EmbeddedStore(tmp_path) as store:
        assert url_of(tmp_path) == store.url
    with pytest.raises(StoreFailed, match="no store runs in"):
        url_of(tmp_path)


def test_a_damaged_log_is_refused_in_the_servers_own_words(tmp_path: Path) -> None:
    with EmbeddedStore(tmp_path) as store, connect(store) as client:
        for number in range(100):
            client.set(f"key:{number}", "x" * 100)
    log = next((tmp_path / "store" / "appendonlydir").glob("*.incr.aof"))
    log.write_bytes(log.read_bytes()[:2000] + b"\0garbage\0" + log.read_bytes()[2000:])
    with pytest.raises(StoreFailed, match=r"store\.log"):
        EmbeddedStore(tmp_path).start()
    log.write_bytes(log.read_bytes()[:1990])  # a torn tail alone is cut off
    with EmbeddedStore(tmp_path) as store, connect(store) as client:
        assert client.get("key:1") == "x" * 100


def test_another_kind_of_server_does_not_spoil_the_folder(tmp_path: Path) -> None:
    with EmbeddedStore(tmp_path / "data") as store, connect(store) as client:
        client.set("kept", "yes")
        assert store.server is not None
        wrote = store.server
    # A server of the other kind: it reads nothing, and says so as a real one would.
    says = "Redis server v=7.0.15 sha=0" if wrote.name == "valkey" else "Valkey server v=8.0.0 sha=0"
    other = tmp_path / "other-server"
    other.write_text(
        f"#!/bin/sh\n[ $1 = --version ] && echo '{says}' && exit\necho 'Bad file format, use --fix' && exit 1\n"
    )
    other.chmod(0o755)
    with pytest.raises(StoreFailed, match=f"cannot read what {wrote.name} ") as refusal:
        EmbeddedStore(tmp_path / "data", server=other).start()
    assert "--fix" not in str(refusal.value)
    with EmbeddedStore(tmp_path / "data") as store, connect(store) as client:
        assert client.get("kept") == "yes"


def test_a_folder_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StoreFailed, match="cannot be used"):
        EmbeddedStore(tmp_path / "file").start()
    (tmp_path / "store").write_text("not a folder")
    with pytest.raises(StoreFailed, match="cannot be used"):
        EmbeddedStore(tmp_path).start()


def test_a_program_that_is_no_server_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreFailed, match="not a Redis or Valkey server"):
        EmbeddedStore(tmp_path, server=Path(sys.executable)).start()
    with EmbeddedStore(tmp_path):
        pass  # the failed start gave the folder back
