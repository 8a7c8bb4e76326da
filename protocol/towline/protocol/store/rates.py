"""What callers may still spend, over all gateways: one bucket for each rate and caller.

Promises that buckets outlive nothing: each expires once it would be full, and a store that is full of runs still
serves them. Leaves what a rate is, and what happens when the store does not answer, to the gateway.
"""

import math
from typing import Any, Final

from msgspec import Struct

from towline.protocol.store.base import ScriptCaller
from towline.protocol.store.keys import rate_key

_MOST: Final = 2**53


class Taken(Struct, frozen=True):
    """`amount`: how much was taken; 0 if too little was there. `wait_ms`: how long until it would be worth asking."""

    amount: int
    wait_ms: int


class RatesStore(ScriptCaller):
    """The buckets."""

    async def take_tokens(
        self, rate: str, whom: str, *, per_s: float, burst_s: float, least: int, most: int, forced: bool = False
    ) -> Taken:
        """Takes up to `most` of what `whom` has left of `rate`, and nothing if that is less than `least`.

        `forced` takes `least` in any case; the caller is then in debt.
        """
        reply: list[Any] = await self._call(
            "take_tokens",
            [rate_key(rate, whom)],
            {
                "per_s": per_s,
                "burst_ms": math.ceil(burst_s * 1000),
                "least": least,
                "most": min(max(least, most), _MOST),
                "forced": forced,
            },
            now_at=None,
        )
        if reply[0] == b"FULL":
            return Taken(0, max(1, int(reply[1])))
        return Taken(int(reply[1]), int(reply[2]))
