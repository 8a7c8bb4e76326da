"""Runs the Lua scripts: one file per atomic operation, found by its name, called with one packed request.

Promises that a script is sent by its hash and loaded again when the server forgot it, and that its reply is a
list whose first item is one of `WORDS`. Header lines of a script say what it is made of:
`-- class: growth | relief | either` (relief passes when memory is full) and `-- needs: …` (shared parts from
`lua/lib`, in order). Leaves keys to `keys` and the meaning of replies to `redis`.
"""

import hashlib
import re
from collections.abc import Awaitable, Callable, Sequence
from importlib.resources import files
from typing import Any, Final, cast

import msgspec
import redis.asyncio
from redis.exceptions import NoScriptError

WORDS: Final = frozenset(
    {"OK", "DUPLICATE", "EXISTS", "MISMATCH", "CHANGED", "FENCED", "CLOSED", "UNSEEN", "HELD", "DIVERGED", "PARKED"}
    | {"POISON", "NORUN", "GONE", "FULL"}
)
"""The first word of every reply."""

Probe = Callable[[str], None]
"""Called with `before:<script>` and `after:<script>` around each call; crash tests stop the process there."""

_LUA: Final = files("towline.protocol.store") / "lua"
_pack: Final = msgspec.msgpack.Encoder()


class Script(msgspec.Struct, frozen=True):
    """One compiled script."""

    name: str
    text: str
    sha: str


def _header(source: str, field: str) -> str:
    match = re.search(rf"^-- {field}: (.*)$", source, re.MULTILINE)
    return match[1].strip() if match else ""


def script_names() -> list[str]:
    """All scripts that ship, by name."""
    return sorted(f.name.removesuffix(".lua") for f in _LUA.iterdir() if f.name.endswith(".lua"))


def source_of(name: str) -> str:
    """The text of one script as it stands in its file."""
    return (_LUA / f"{name}.lua").read_text(encoding="utf-8")


def compile_script(name: str, *, relief: bool) -> Script:
    """The script with its shared parts in front, as the server runs it."""
    source = source_of(name)
    kind = _header(source, "class").split(" ")[0]
    if kind not in ("growth", "relief", "either") or (kind != "either" and relief != (kind == "relief")):
        raise ValueError(f"{name}.lua is of class {kind!r}, it cannot run as {'relief' if relief else 'growth'}")
    parts = [(_LUA / "lib" / f"{part}.lua").read_text(encoding="utf-8") for part in _header(source, "needs").split()]
    text = "\n".join(["#!lua flags=allow-oom" if relief else "#!lua", *parts, source])
    return Script(name, text, hashlib.sha1(text.encode()).hexdigest())


class Scripts:
    """The compiled scripts and the one way to call them."""

    def __init__(self, client: redis.asyncio.Redis, probe: Probe | None = None) -> None:
        self._client = client
        self._probe = probe
        self._compiled: dict[tuple[str, bool], Script] = {}

    def _script(self, name: str, relief: bool) -> Script:
        script = self._compiled.get((name, relief))
        if script is None:
            script = self._compiled[name, relief] = compile_script(name, relief=relief)
        return script

    async def call(self, name: str, keys: Sequence[str], request: dict[str, Any], *, relief: bool = True) -> list[Any]:
        """The reply of script `name`; its first item is one of `WORDS` unless the script says otherwise."""
        script = self._script(name, relief)
        packed = _pack.encode(request)
        if self._probe is not None:
            self._probe(f"before:{name}")
        try:
            reply = await cast(
                "Awaitable[list[Any]]", self._client.evalsha(script.sha, len(keys), *keys, cast("str", packed))
            )
        except NoScriptError:
            reply = await cast(
                "Awaitable[list[Any]]", self._client.eval(script.text, len(keys), *keys, cast("str", packed))
            )
        if self._probe is not None:
            self._probe(f"after:{name}")
        return reply
