"""Which server, which credential: options, then the environment, then the data folder."""

from pathlib import Path

import pytest

from towline.deploy.address import Address, NoAddress, find_address


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "dev.json").write_text('{"url": "http://127.0.0.1:8787", "token": "dev", "data": "x"}')
    return tmp_path


def test_a_running_stack_is_found(data: Path) -> None:
    assert find_address(None, None, data, {}) == Address("http://127.0.0.1:8787", "dev")
    assert find_address(None, None, None, {"TOWLINE_DATA": str(data)}) == Address("http://127.0.0.1:8787", "dev")


def test_options_win_over_the_environment(data: Path) -> None:
    environment = {"TOWLINE_URL": "http://b", "TOWLINE_TOKEN": "b"}
    assert find_address("http://a/", "a", data, environment) == Address("http://a", "a")
    assert find_address(None, None, data, environment) == Address("http://b", "b")
    assert find_address(None, "a", data, {}) == Address("http://127.0.0.1:8787", "a")


def test_the_token_of_a_folder_goes_to_its_own_address_only(data: Path) -> None:
    with pytest.raises(NoAddress, match="--token"):
        find_address("http://elsewhere", None, data, {})
    assert find_address("http://127.0.0.1:8787", None, data, {}).token == "dev"


@pytest.mark.parametrize("content", ["", "{", "{}", "[]"])
def test_a_broken_file_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "dev.json").write_text(content)
    with pytest.raises(NoAddress, match=r"dev\.json"):
        find_address(None, None, tmp_path, {})


def test_nothing_there_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NoAddress, match="towline dev"):
        find_address(None, None, tmp_path, {})
    with pytest.raises(NoAddress, match="http://"):
        find_address("localhost:1", "t", tmp_path, {})
