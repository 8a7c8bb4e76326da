"""A command that only talks to a gateway does not wait for what gateways, workers and stores are made of."""

import subprocess
import sys

HEAVY = ("redis", "hiredis", "starlette", "uvicorn", "jsonschema")


def loaded_by(statement: str) -> set[str]:
    """Which of the heavy packages a fresh interpreter has loaded after `statement`."""
    code = f"import sys\n{statement}\nprint(*(name for name in {HEAVY!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_command_line_loads_no_server_and_no_store() -> None:
    assert loaded_by("import towline.deploy.cli") == set()


def test_what_is_loaded_would_be_seen() -> None:
    assert "redis" in loaded_by("import towline.deploy.cli, towline.protocol.store.durability")
