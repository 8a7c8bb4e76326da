"""Secrets: named in workflow code and in the log, known by value only inside an activity.

    await ctx.run(deploy, Secret("DEPLOY_KEY"))      # recorded as its name
    ... key.reveal() ...                              # in the activity, on the worker that runs it

Promises that a value comes from this worker's environment (`TOWLINE_SECRET_<name>`) and from nowhere else, and that
every value that could be revealed here is known to `scrub`, which keeps it out of all that is appended.
"""

import os
import re
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

PREFIX: Final = "TOWLINE_SECRET_"
_NAME: Final = re.compile(r"[A-Z][A-Z0-9_]{0,63}\Z")
_known: frozenset[str] = frozenset()


class Secret(Struct, frozen=True):
    """A secret by its name: capital letters, digits and `_`."""

    name: str

    def reveal(self) -> str:
        """The value. Raises `LookupError` where this worker has none under the name."""
        value = os.environ.get(PREFIX + self.name) if _NAME.match(self.name) else None
        if not value:
            raise LookupError(f"this worker has no secret {self.name!r}; set {PREFIX}{self.name} for it")
        _know(value)
        return value


def know_all(environment: Mapping[str, str] = os.environ) -> None:
    """Knows the secrets of this worker from the start, not only those that were revealed."""
    _know(*(value for name, value in environment.items() if name.startswith(PREFIX) and value))


def known_values() -> frozenset[str]:
    """The values that must not be seen; the same object until there is another."""
    return _known


def _know(*values: str) -> None:
    global _known
    if not _known.issuperset(values):
        _known |= frozenset(values)
