"""Where the source is, and what each module imports; shared by the tests beside it."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parents[2]
ROOTS: Final = ("gateway", "protocol", "workers", "deploy")


def modules() -> Iterator[tuple[str, Path]]:
    """Every module of the distribution: dotted name and file."""
    for root in ROOTS:
        for path in sorted((REPOSITORY / root / "towline").rglob("*.py")):
            parts = path.relative_to(REPOSITORY / root).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imported(source: str) -> set[str]:
    """What a source imports, also inside functions: `a.b` and, for `from a import b`, both `a` and `a.b`."""
    found = set[str]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def is_within(name: str, package: str) -> bool:
    """Whether `name` is `package` or lies in it."""
    return name == package or name.startswith(package + ".")
