"""What users install: one wheel with all four packages, their data files, and nothing else."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.architecture.sources import REPOSITORY, ROOTS


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names in the wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
        timeout=120,
    )
    (wheel,) = folder.glob("*.whl")
    return set(zipfile.ZipFile(wheel).namelist())


def test_every_file_of_the_packages_travels(names: set[str]) -> None:
    for root in ROOTS:
        base = REPOSITORY / root
        expected = {
            str(path.relative_to(base))
            for path in (base / "towline").rglob("*")
            if path.suffix in {".py", ".lua", ".html", ".css", ".js", ".json", ".typed"}
        }
        assert expected - names == set()
        assert f"towline/{root}/py.typed" in names


def test_nothing_else_travels(names: set[str]) -> None:
    tops = {Path(name).parts[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"towline"}
    assert "towline/__init__.py" not in names
