"""Which store, which secret, which folder: options before environment, and nothing misspelt passes."""

import stat
from pathlib import Path

import pytest

from towline.deploy.data_folder import StoreFailed
from towline.deploy.settings import (
    SettingsError,
    make_secret,
    payloads_of,
    refuse_unknown,
    secret_of,
    store_url_of,
    write_private,
)

LONG = "x" * 32


def test_a_misspelt_variable_is_refused_by_name() -> None:
    with pytest.raises(SettingsError, match="TOWLINE_JWT_SECERT"):
        refuse_unknown({"TOWLINE_JWT_SECERT": LONG})


def test_known_variables_pass_and_parts_check_their_own() -> None:
    refuse_unknown({"TOWLINE_DATA": "x", "TOWLINE_GATEWAY_ORIGINS": "x", "TOWLINE_WORKER_SLOTS": "3", "HOME": "/"})


def test_the_option_wins_over_the_environment() -> None:
    assert store_url_of(None, "redis://a", {"TOWLINE_STORE_URL": "redis://b"}) == "redis://a"
    assert store_url_of(None, None, {"TOWLINE_STORE_URL": "redis://b"}) == "redis://b"


def test_a_folder_named_by_option_is_not_overruled_by_a_url_in_the_environment(tmp_path: Path) -> None:
    with pytest.raises(StoreFailed, match="no store runs in"):
        store_url_of(tmp_path, None, {"TOWLINE_STORE_URL": "redis://b"})


def test_no_store_says_how_to_name_one() -> None:
    with pytest.raises(SettingsError, match="--data DIR or --url URL"):
        store_url_of(None, None, {})


def test_what_is_no_address_of_a_store_is_refused() -> None:
    with pytest.raises(SettingsError, match="redis://"):
        store_url_of(None, "http://127.0.0.1", {})


def test_payloads_need_a_folder(tmp_path: Path) -> None:
    assert payloads_of(tmp_path, {}) == tmp_path / "payloads"
    assert payloads_of(None, {"TOWLINE_DATA": str(tmp_path)}) == tmp_path / "payloads"
    with pytest.raises(SettingsError, match="--data DIR"):
        payloads_of(None, {})


def test_an_object_store_takes_the_place_of_the_folder(tmp_path: Path) -> None:
    assert payloads_of(tmp_path, {"TOWLINE_PAYLOADS_URL": "s3://bucket/prefix"}) == "s3://bucket/prefix"
    refuse_unknown({"TOWLINE_PAYLOADS_URL": "s3://bucket"})


def test_a_secret_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    made = make_secret(tmp_path)
    assert len(bytes.fromhex(made)) == 32
    assert make_secret(tmp_path) == made == secret_of(tmp_path, {})
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


def test_the_secret_of_a_named_folder_wins_over_the_environment(tmp_path: Path) -> None:
    made = make_secret(tmp_path)
    assert secret_of(tmp_path, {"TOWLINE_JWT_SECRET": LONG}) == made
    assert secret_of(None, {"TOWLINE_JWT_SECRET": LONG, "TOWLINE_DATA": str(tmp_path)}) == LONG
    assert secret_of(None, {"TOWLINE_DATA": str(tmp_path)}) == made


def test_a_folder_without_a_secret_falls_back_to_the_environment_or_says_what_to_do(tmp_path: Path) -> None:
    assert secret_of(tmp_path, {"TOWLINE_JWT_SECRET": LONG}) == LONG
    with pytest.raises(SettingsError, match="towline dev --data"):
        secret_of(tmp_path, {})
    with pytest.raises(SettingsError, match="TOWLINE_JWT_SECRET"):
        secret_of(None, {})


def test_a_short_secret_is_refused_without_being_shown(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hunter2\n")
    for data, environment in [(tmp_path, {}), (None, {"TOWLINE_JWT_SECRET": "hunter2"})]:
        with pytest.raises(SettingsError, match="shorter than 32 bytes") as refused:
            secret_of(data, environment)
        assert "hunter2" not in str(refused.value)


def test_a_private_file_replaces_what_was_there_whole(tmp_path: Path) -> None:
    path = tmp_path / "dev.json"
    path.write_text("old and longer than the new one")
    path.chmod(0o644)
    write_private(path, "new")
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]
