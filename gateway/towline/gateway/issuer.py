"""The public keys of an issuer as a gateway has them: read from its JWK Set at a URL or in a file, kept, renewed.

Promises that a token with a new key is taken without a restart, and that tokens with made-up key names cost the issuer
at most one question in a while. While the issuer is away the keys that were read last go on to hold. Leaves to
`protocol.jwks` what is a key.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import httpx

from towline.protocol.errors import problem
from towline.protocol.jwks import MAX_SET_BYTES, BadKeys, PublicKey, read_keys

_log: Final = logging.getLogger("towline.gateway")

KEEP_S: Final = 300.0
"""How long keys are taken without asking again: a key that the issuer withdrew is out after it."""
_ASK_S: Final = 10.0
_TIMEOUT_S: Final = 5.0


class Issuer:
    """The keys at `address`: an `https:` or `http:` URL, or the path of a file."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._keys: Sequence[PublicKey] = ()
        self._asked_at_s = float("-inf")
        self._read_at_s = float("-inf")
        self._asking = asyncio.Lock()

    async def keys(self, *, anew: bool = False) -> Sequence[PublicKey]:
        """The keys; with `anew` those of now, unless the issuer was asked a moment ago. Raises `unavailable`."""
        now_s = time.monotonic()
        if anew or now_s - self._read_at_s > KEEP_S:
            async with self._asking:
                if time.monotonic() - self._asked_at_s > _ASK_S:
                    await self._ask()
        if not self._keys:
            raise problem("unavailable", "The keys of the issuer are not known yet; try again.", retry_after_ms=1000)
        return self._keys

    async def _ask(self) -> None:
        self._asked_at_s = time.monotonic()
        try:
            self._keys = read_keys(await self._read())
        except (BadKeys, OSError, httpx.HTTPError) as error:
            _log.error("the keys of the issuer could not be read: %s", error)
            return
        self._read_at_s = time.monotonic()

    async def _read(self) -> bytes:
        if not self._address.startswith(("https:", "http:")):
            return await asyncio.to_thread(_start_of, Path(self._address))
        text = bytearray()
        async with (
            httpx.AsyncClient(timeout=_TIMEOUT_S, trust_env=False) as client,
            client.stream("GET", self._address, headers={"Accept": "application/json"}) as answer,
        ):
            answer.raise_for_status()
            async for chunk in answer.aiter_bytes():
                text += chunk
                if len(text) > MAX_SET_BYTES:
                    break
        return bytes(text)


def _start_of(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_SET_BYTES + 1)
