"""Real folders for the review's tools to work on."""

from pathlib import Path

import pytest

from towline.workers.agents.review.copies import RunFolder


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """An empty folder to be reviewed."""
    folder = tmp_path / "source"
    folder.mkdir()
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """The folder of a run, not yet made."""
    return RunFolder(tmp_path / "work" / "run_1")
