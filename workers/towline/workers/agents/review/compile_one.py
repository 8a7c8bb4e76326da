"""Compiles one file to byte code and prints what the compiler said, as one line of JSON.

Run as a program in an interpreter of its own (`python -I -S compile_one.py PATH`), because a file may crash the
compiler, or make it use all memory; then only this process ends. Writes no `.pyc`, executes nothing of the file,
and bounds its own memory and time. Uses the standard library only. `tools` reads the line.
"""

import contextlib
import json
import os
import sys
import warnings
from typing import Any

MEMORY_BYTES = 1 << 30
CPU_S = 10


def compile_source(data: bytes, path: str) -> list[dict[str, Any]]:
    """What the compiler says about the source `data`: its warnings, and its error if it refuses."""
    said: list[dict[str, Any]] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            compile(data, path, "exec", dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as error:
            said.append(_refusal(error))
    said += [{"code": w.category.__name__, "message": str(w.message), "line": w.lineno, "column": 0} for w in caught]
    return said


def _refusal(error: Exception) -> dict[str, Any]:
    line, column, message = 0, 0, str(error) or "the compiler gave up"
    if isinstance(error, SyntaxError):
        line, column, message = error.lineno or 0, error.offset or 0, error.msg
    return {"code": type(error).__name__, "message": message, "line": line, "column": max(column, 0)}


def _limit_self() -> None:
    import resource

    for limit, value in (
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_CPU, CPU_S),
        (resource.RLIMIT_CORE, 0),
    ):
        with contextlib.suppress(ValueError, OSError):  # not every system knows every limit
            resource.setrlimit(limit, (value, value))


def main(path: str) -> None:
    """Compile the file at `path` and print what was said."""
    _limit_self()
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        data = file.read()
    sys.stdout.write(json.dumps(compile_source(data, path)) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
