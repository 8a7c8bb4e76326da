"""What a store raises, whatever implements it. Callers know these as `api.…`.

Promises that a call which raised anything but `StoreUnavailable` wrote nothing.
"""

from collections.abc import Mapping


class StoreError(Exception):
    """Root of what a store raises.

    StoreError
     +-- StoreUnavailable   not reachable now; the outcome of the call is unknown: repeat it as it was
     +-- StoreFull          no memory for growth; nothing was written
     +-- NoRun              no such run
     +-- RunGone            the run was deleted
     +-- RunClosed          the log is sealed
     +-- Changed            what the caller relied on is no longer so; read again and prepare again
     +-- Fenced             the lease is another's, or was given back: stop, write nothing more
     +-- Diverged           the store is older than what the holder knows: drop the machine, claim anew, replay
     +-- Unseen             an ending was refused: an input stands behind `seen`
     +-- TestOnly           only a store initialised for tests allows this
    """


class StoreUnavailable(StoreError):
    pass


class StoreFull(StoreError):
    pass


class NoRun(StoreError):
    pass


class RunGone(StoreError):
    """`owner` started the run; `fields` are those that decide who could read it, where they were asked for."""

    def __init__(self, run: str, owner: str = "", fields: Mapping[str, str] | None = None) -> None:
        super().__init__(run)
        self.owner = owner
        self.fields: Mapping[str, str] = {} if fields is None else fields


class RunClosed(StoreError):
    pass


class Changed(StoreError):
    pass


class Reserved(StoreError):
    """The id stands for the key of a run of a thread; `id` is that run's."""

    def __init__(self, id_: str) -> None:
        super().__init__(id_)
        self.id = id_


class Fenced(StoreError):
    pass


class Diverged(StoreError):
    pass


class Unseen(StoreError):
    pass


class TestOnly(StoreError):
    __test__ = False
