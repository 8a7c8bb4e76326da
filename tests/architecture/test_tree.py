"""The shape of the tree: one namespace without an owner, typed packages, files of a size one can read."""

import ast
from collections.abc import Mapping
from typing import Final

from tests.architecture.sources import REPOSITORY, ROOTS, modules

LONGEST_LINES: Final = 400

LONGER: Final[Mapping[str, int]] = {}
"""Files that may be longer, each with its limit and, beside it, the reason."""

OTHER_WORDS: Final = ("job", "topic", "room", "listener", "backfill", "journal", "mutex")
"""Words for which this project has another one: run, channel, subscription, replay, history, lease."""


def test_nobody_owns_the_namespace() -> None:
    # A single towline/__init__.py hides the other three roots.
    assert [root for root in ROOTS if (REPOSITORY / root / "towline" / "__init__.py").exists()] == []


def test_every_package_says_that_it_is_typed_and_what_it_is() -> None:
    for root in ROOTS:
        package = REPOSITORY / root / "towline" / root
        assert (package / "py.typed").exists()
        assert ast.get_docstring(ast.parse((package / "__init__.py").read_text()))


def test_every_folder_with_modules_is_a_package() -> None:
    # A folder without __init__.py still imports, and is silently left out by tools that look for packages.
    assert [str(path) for _, path in modules() if not (path.parent / "__init__.py").exists()] == []


def test_files_stay_readable() -> None:
    too_long = dict[str, int]()
    for path in sorted({path for _, path in modules()} | set((REPOSITORY / "tests").rglob("*.py"))):
        name, lines = str(path.relative_to(REPOSITORY)), len(path.read_text().splitlines())
        if lines > LONGER.get(name, LONGEST_LINES):
            too_long[name] = lines
    assert too_long == {}, "split by responsibility, or name the file in LONGER with a reason"


def test_exceptions_are_needed() -> None:
    for name in LONGER:
        assert len((REPOSITORY / name).read_text().splitlines()) > LONGEST_LINES, f"{name} needs no exception"


def test_one_word_for_one_thing() -> None:
    found = list[str]()
    for module, path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                words = "".join("_" + c.lower() if c.isupper() else c for c in node.name).split("_")
                found += [f"{module}.{node.name}" for word in words if word in OTHER_WORDS]
    assert found == []
