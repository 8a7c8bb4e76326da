"""How much one caller may ask: rates and places, per subject and per address, on an injected clock.

Promises that a refusal says when to come back, that a refused call costs its caller nothing, that no caller spends
what another has, and that memory is bounded however many callers there are: what is forgotten first is who has not
been here for longest, and a caller who rests is forgotten without loss. Holds for this process; what all gateways share
is taken by `rations`. Leaves what a refusal looks like to `admission`.
"""

import ipaddress
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from typing import Final, Literal

from msgspec import Struct

from towline.protocol.limits import MIB

What = Literal["subscriptions", "commands", "creates", "replay_bytes"]

BURST_S: Final = 4.0
"""So many seconds' worth of a rate may be asked at once."""
_KEPT: Final = 20_000
"""How many callers one kind of limit remembers."""
_SUBNET_BITS: Final = 64
"""What one subscriber of an IPv6 provider gets at least: its addresses are one address here."""


class Allowances(Struct, frozen=True, kw_only=True):
    """The bounds of a gateway. Rates allow a burst of four seconds' worth.

    The rates of subjects and addresses but `accepts_per_s` are shared by all gateways on one store; the rest holds for
    one process.

    `sockets`, `handshakes`: open here, and open without a credential yet, whoever they are.
    `accepts_per_s`: sockets that may come a second, whoever they are: a herd that returns is let in bit by bit.
    `handshakes_per_address`: open from one address without a credential yet.
    `sockets_per_subject`, and the rates `…_per_s`: of one subject; an address gets `address_factor` times as much
    (0: no limit, for a gateway behind a proxy that it does not trust to say whose requests those are).
    `frames_per_s`: that one socket may send, of whatever kind.
    `requests`: HTTP requests being answered at the same time.
    `replays`: reads of stored events for subscriptions at the same time.
    `buffered_bytes`: sent and not yet taken, over all sockets, beyond which everything that can wait is shed.
    """

    sockets: int = 20_000
    handshakes: int = 5_000
    accepts_per_s: int = 2_000
    handshakes_per_address: int = 2_000
    sockets_per_subject: int = 10_000
    subscriptions_per_s: int = 1_000
    commands_per_s: int = 500
    creates_per_s: int = 250
    replay_bytes_per_s: int = 256 * MIB
    frames_per_s: int = 1_000
    address_factor: int = 4
    requests: int = 10_000
    replays: int = 64
    buffered_bytes: int = 512 * MIB


VARIABLES: Final[Mapping[str, str]] = {
    "SOCKETS": "sockets open at the same time",
    "HANDSHAKES": "sockets without a credential yet at the same time",
    "ACCEPTS_PER_S": "sockets that may come a second",
    "HANDSHAKES_PER_ADDRESS": "sockets without a credential yet from one address",
    "SOCKETS_PER_SUBJECT": "sockets of one subject",
    "SUBSCRIPTIONS_PER_S": "subscriptions a second of one subject",
    "COMMANDS_PER_S": "commands a second of one subject",
    "CREATES_PER_S": "new runs a second of one subject",
    "REPLAY_BYTES_PER_S": "bytes of stored events a second to one subject",
    "FRAMES_PER_S": "frames a second from one socket",
    "ADDRESS_FACTOR": "how many subjects' worth one address gets; 0 sets no limit to addresses",
    "REQUESTS": "HTTP requests being answered at the same time",
    "REPLAYS": "reads of stored events at the same time",
    "BUFFERED_BYTES": "bytes sent and not yet taken, over all sockets",
}
"""The settings' names and what each bounds; the field is the name in lower case."""


class Who(Struct, frozen=True):
    """A caller; `address` is None on a unix socket."""

    subject: str
    address: str | None = None


def address_in(client: object) -> str | None:
    """The address under which ASGI's `client` is counted: IPv6 by its /64 network."""
    if not isinstance(client, list | tuple) or not client or not client[0]:
        return None
    try:
        address = ipaddress.ip_address(str(client[0]).partition("%")[0])
    except ValueError:
        return str(client[0])
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, _SUBNET_BITS), strict=False))
    return str(address)


class Rates:
    """One rate for many callers. What a caller spent is kept as the time at which all of it will have come back."""

    def __init__(self, per_s: float, clock_s: Callable[[], float], *, kept: int = _KEPT) -> None:
        self.per_s = per_s
        self._clock_s = clock_s
        self._kept = kept
        self._whole_at_s: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._whole_at_s)

    def wait_s(self, key: str, amount: float = 1) -> float:
        """How long `key` must wait until it may spend `amount`; 0 if it may now. Spends nothing."""
        now_s = self._clock_s()
        whole_at_s = max(now_s, self._whole_at_s.get(key, now_s)) + amount / self.per_s
        return max(0.0, whole_at_s - now_s - BURST_S)

    def spend(self, key: str, amount: float = 1) -> None:
        """`key` spends `amount`, also beyond what it has."""
        now_s = self._clock_s()
        whole_at_s = max(now_s, self._whole_at_s.pop(key, now_s)) + amount / self.per_s
        self._whole_at_s[key] = whole_at_s
        while len(self._whole_at_s) > self._kept:
            self._whole_at_s.popitem(last=False)


class Limiter:
    """The rates of all callers, by what they ask."""

    def __init__(self, allowances: Allowances, clock_s: Callable[[], float]) -> None:
        per_s: dict[What, int] = {
            "subscriptions": allowances.subscriptions_per_s,
            "commands": allowances.commands_per_s,
            "creates": allowances.creates_per_s,
            "replay_bytes": allowances.replay_bytes_per_s,
        }
        factor = allowances.address_factor
        self._subjects = {what: Rates(rate, clock_s) for what, rate in per_s.items()}
        self._addresses = {what: Rates(rate * factor, clock_s) for what, rate in per_s.items() if factor}

    def take(self, what: What, who: Who) -> float:
        """Spends one, if neither the subject nor the address has to wait: how long they must, in seconds."""
        wait_s = self.wait_s(what, who)
        if not wait_s:
            for rate, key in self._of(what, who):
                rate.spend(key)
        return wait_s

    def wait_s(self, what: What, who: Who) -> float:
        """How long the subject and the address must wait until they may spend one; 0 if now. Spends nothing."""
        return max(rate.wait_s(key) for rate, key in self._of(what, who))

    def whose(self, what: What, who: Who) -> list[tuple[str, float]]:
        """Whose rates count, by a name that is one for all gateways, and how much each may spend a second."""
        (subject, key), *addresses = self._of(what, who)
        return [(f"user:{key}", subject.per_s), *((f"address:{key}", rate.per_s) for rate, key in addresses)]

    def owe(self, what: What, who: Who, amount: int) -> float:
        """Spends `amount` in any case: how long to wait, in seconds, before more is asked."""
        rates = self._of(what, who)
        for rate, key in rates:
            rate.spend(key, amount)
        return max(rate.wait_s(key, 0) for rate, key in rates)

    def _of(self, what: What, who: Who) -> list[tuple[Rates, str]]:
        rates = [(self._subjects[what], who.subject)]
        if who.address is not None and what in self._addresses:
            rates.append((self._addresses[what], who.address))
        return rates


class Places:
    """How many of something each key has at the same time; a key without any costs nothing."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._taken)

    def take(self, key: str) -> bool:
        """Takes a place for `key`; whether there was one."""
        if self._taken[key] >= self._most:
            return False
        self._taken[key] += 1
        return True

    def give_back(self, key: str) -> None:
        """A place of `key` is free again."""
        self._taken[key] -= 1
        if self._taken[key] <= 0:
            del self._taken[key]
