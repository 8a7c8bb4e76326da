"""Loading a user's workflows: modules, files, and what a person reads when they are wrong."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from towline.deploy.loading import LoadError, absolute, load
from towline.workers.registry import registry

TOY = """
from towline.workers import Context, workflow

@workflow(name={name!r})
async def run(ctx: Context) -> str:
    return "done"
"""


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test imports and registers is gone after it."""
    monkeypatch.setattr(registry, "workflows", {})
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_file_with_a_neighbour(tmp_path: Path) -> None:
    (tmp_path / "neighbour_of_toy.py").write_text("NAME = 'toy'\n")
    file = tmp_path / "toy.py"
    file.write_text(TOY.format(name="toy") + "\nimport neighbour_of_toy\n")
    load([str(file)])
    assert list(registry.workflows) == [("toy", "1")]


def test_a_file_named_like_a_module_of_the_library_does_not_shadow_it(tmp_path: Path) -> None:
    file = tmp_path / "json.py"
    file.write_text(TOY.format(name="odd"))
    before = sys.modules["json"]
    load([str(file)])
    assert sys.modules["json"] is before
    assert list(registry.workflows) == [("odd", "1")]


def test_a_module_from_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "toy_module.py").write_text(TOY.format(name="toy"))
    monkeypatch.chdir(tmp_path)
    load(["toy_module"])
    assert list(registry.workflows) == [("toy", "1")]


def test_a_file_stays_what_it_is_in_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "toy.py").write_text("")
    monkeypatch.chdir(tmp_path)
    assert absolute("toy.py") == str(tmp_path / "toy.py")
    assert absolute("a.module") == "a.module"


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("x = (", r"toy\.py:1: SyntaxError"),
        ("\nimport not_there_at_all", r"toy\.py:2: ModuleNotFoundError.*not_there_at_all"),
        ("def f():\n    raise RuntimeError('why')\nf()", r"toy\.py:2: RuntimeError: why"),
        ("raise SystemExit(3)", r"ended the process.*3"),
        ("x = 1", r"defines no workflow: decorate one"),
    ],
)
def test_a_broken_file_says_where(tmp_path: Path, source: str, says: str) -> None:
    file = tmp_path / "toy.py"
    file.write_text(source)
    with pytest.raises(LoadError, match=says):
        load([str(file)])


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ("no/such/file.py", "no file"),
        ("no_such_module_x", "no module no_such_module_x"),
        ("towline.no_such", "no module towline.no_such"),
        ("", "is no module"),
        (".relative", "cannot be imported|is no module"),
    ],
)
def test_what_is_not_there_is_named(named: str, says: str) -> None:
    with pytest.raises(LoadError, match=says):
        load([named])
