"""One stack of real processes for the commands that talk to it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.dev import Dev
from tests.support.stack import JOURNEY


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with something to find and to fix."""
    folder = tmp_path_factory.mktemp("source") / "shop"
    folder.mkdir()
    (folder / "cart.py").write_text("import os\nimport sys\n\n\ndef total(items):\n    return sum(items)\n")
    return folder


@pytest.fixture(scope="session")
def dev(tmp_path_factory: pytest.TempPathFactory, source: Path) -> Iterator[Dev]:
    arguments = ("--workers", "1", "--workflows", JOURNEY, "--allow-path", source.parent)
    with Dev(tmp_path_factory.mktemp("dev") / "data", *arguments) as running:
        yield running
