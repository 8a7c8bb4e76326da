"""Loading a user's workflows: a module by its name, or a file by its path.

Promises that after `load` the worker's registry holds what the module defines, or a `LoadError` that says in
one line where it went wrong. A file's own folder is searched first for what it imports, as with `python FILE`.
"""

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Final

from towline.workers.registry import registry

SHIPPED: Final = "towline.workers.agents"
"""The workflows that come with Towline; `review` is one of them."""


class LoadError(Exception):
    """A module or file of workflows cannot be used; the message says where and why."""


def is_file(named: str) -> bool:
    """Whether MODULE_OR_FILE means a file."""
    return named.endswith(".py") or os.sep in named


def absolute(named: str) -> str:
    """The same module or file, whatever the working folder. Raises `LoadError` for a file that is not there."""
    if not is_file(named):
        return named
    path = Path(named)
    if not path.is_file():
        raise LoadError(f"no file {named}: check the path, or give a module name such as my_package.workflows")
    return str(path.absolute())


def load(named: Sequence[str]) -> None:
    """Imports every module and file. Raises `LoadError`, also when they define no workflow at all."""
    for name in named:
        try:
            _import_file(Path(absolute(name))) if is_file(name) else _import_module(name)
        except LoadError:
            raise
        except SystemExit as error:
            raise LoadError(f"{name} ended the process while it was imported (exit code {error.code})") from error
        except Exception as error:
            raise LoadError(f"{name} cannot be imported: {_where(error)}{type(error).__name__}: {error}") from error
    if not registry.workflows:
        raise LoadError(f"{', '.join(named)} defines no workflow: decorate one with @workflow(name=…)")


def _import_module(name: str) -> None:
    # As `python -m` does: the console script's own folder stands there otherwise.
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(error.name + ".")):
            raise
        raise LoadError(f"no module {name}: check the name, or give a path that ends in .py") from error
    except ValueError as error:  # an empty or relative name
        raise LoadError(f"{name!r} is no module: give a name such as my_package.workflows") from error


def _import_file(path: Path) -> None:
    name = path.stem if path.stem.isidentifier() and path.stem not in sys.modules else f"workflows_{len(sys.modules)}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise LoadError(f"{path} is no Python file: its name must end in .py")
    if (folder := str(path.parent)) not in sys.path:
        sys.path.insert(0, folder)
    module: ModuleType = importlib.util.module_from_spec(spec)
    # Before it runs: its annotations are looked up there, and files that import each other find it.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


def _where(error: Exception) -> str:
    """`file:line: ` of the innermost frame, which is where a person has to look."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}: "
    frames = traceback.extract_tb(error.__traceback__)
    outside = [frame for frame in frames if "importlib" not in frame.filename and frame.filename != __file__]
    return f"{outside[-1].filename}:{outside[-1].lineno}: " if outside else ""
