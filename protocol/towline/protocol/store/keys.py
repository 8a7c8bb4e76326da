"""Names of keys and channels: everything that must change together shares the hash tag of a partition.

Promises that no id can leave its tag: ids are checked when they enter (`ids`), the partition is computed here,
and the run id always stands last in a key. Leaves what each key holds to the scripts.
"""

import hashlib
from typing import Final
from urllib.parse import quote

import msgspec

from towline.protocol.ids import PARTITION_TAGS, partition_of, tag_of

PARTITIONS: Final = range(len(PARTITION_TAGS))
STORE: Final = "tl:store"
REGISTRY: Final = "tl:registry"
GROUP: Final = "workers"
CONSUMER: Final = "any"
"""Hints are read without acknowledgement, so one consumer name serves all and none pile up."""


class PartitionKeys(msgspec.Struct, frozen=True):
    """The keys that the runs of one partition share."""

    tag: str

    @classmethod
    def of(cls, partition: int) -> "PartitionKeys":
        return _PARTITION_KEYS[partition]

    @property
    def leases(self) -> str:
        return f"{self.tag}:leases"

    @property
    def timers(self) -> str:
        return f"{self.tag}:timers"

    @property
    def done(self) -> str:
        return f"{self.tag}:done"

    @property
    def index(self) -> str:
        return f"{self.tag}:index"

    @property
    def threads(self) -> str:
        return f"{self.tag}:threads"

    @property
    def switch(self) -> str:
        return f"{self.tag}:switch"

    @property
    def outbox(self) -> str:
        return f"{self.tag}:outbox"

    @property
    def meta(self) -> str:
        return f"{self.tag}:meta"

    @property
    def changes(self) -> str:
        """The sharded channel on which scripts publish the id of a run that they append to."""
        return f"{self.tag}:changes"

    def commands(self, queue: str) -> str:
        return f"{self.tag}:commands:{queue}"


_PARTITION_KEYS: Final = tuple(PartitionKeys("{" + tag_of(p) + "}") for p in PARTITIONS)


class RunKeys(msgspec.Struct, frozen=True):
    """The keys of one run. The four exist from its creation on."""

    run_id: str
    partition: PartitionKeys

    @classmethod
    def of(cls, run_id: str) -> "RunKeys":
        return cls(run_id, _PARTITION_KEYS[partition_of(run_id)])

    @property
    def log(self) -> str:
        return f"{self.partition.tag}:log:{self.run_id}"

    @property
    def private(self) -> str:
        return f"{self.partition.tag}:private:{self.run_id}"

    @property
    def run(self) -> str:
        return f"{self.partition.tag}:run:{self.run_id}"

    @property
    def side(self) -> str:
        return f"{self.partition.tag}:side:{self.run_id}"

    @property
    def text(self) -> str:
        """The texts so far of unfinished messages; it expires, and may be missing."""
        return f"{self.partition.tag}:text:{self.run_id}"

    @property
    def channel(self) -> str:
        """The sharded channel on which scripts publish what they append."""
        return f"{self.partition.tag}:n:{self.run_id}"


def run_of_channel(channel: str) -> str:
    """The run whose entries come on `channel`."""
    return channel.split(":n:", 1)[1]


def ticket_key(digest: str) -> str:
    """The key of a ticket, by the SHA-256 of its text in hex."""
    return f"{_PARTITION_KEYS[int(digest[:8], 16) % len(_PARTITION_KEYS)].tag}:ticket:{digest}"


def rate_key(rate: str, whom: str) -> str:
    """The key of what `whom`, a subject or an address, may still spend; its name tells nobody who that is."""
    digest = hashlib.sha256(whom.encode()).hexdigest()
    return f"{_PARTITION_KEYS[int(digest[:8], 16) % len(_PARTITION_KEYS)].tag}:rate:{rate}:{digest}"


EVERYONE: Final = "a|"
"""Prefix of the index members of all runs."""


def listed_for(subject: str) -> str:
    """Prefix of the index members of runs that `subject` owns or was granted."""
    return f"r|{index_part(subject)}|"


def listed_for_group(group: str) -> str:
    """Prefix of the index members of runs that were granted to a group."""
    return f"rg|{index_part(group)}|"


def co_owned(entry: str, starter: str = "") -> str:
    """Prefix of the index members of runs that `entry` owns by grant, of one starter or (cut short) of all."""
    return f"ro|{index_part(entry)}|{index_part(starter) + '|' if starter else ''}"


def timer_member(kind: str, timer: str, run_id: str) -> str:
    """Member of the timers of a partition: `kind|timer|run`. Kinds: `timer`, `retry`, `cancel`, `start`."""
    return f"{kind}|{quote(timer, safe='')}|{run_id}"


def index_part(value: str) -> str:
    """A subject or label as it stands in an index member, where `|` divides."""
    return quote(value, safe="")
