"""What one worker process is told: where the store is, how much it holds, how long it waits.

Promises one frozen value, read from the environment with the names below; a `TOWLINE_WORKER_` variable that
nobody reads is refused.
"""

import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from towline.protocol.ids import random_id
from towline.protocol.limits import LEASE_MS, RENEW_MS
from towline.protocol.store.payloads import URL_VARIABLE, open_payloads
from towline.workers.scrub import Scrubber

PREFIX: Final = "TOWLINE_WORKER_"


class WorkerSettingsError(ValueError):
    """A setting of the worker is missing or wrong; the message says which."""


def new_worker_name() -> str:
    """Names one worker process in logs: host, process, and a part that no other start shares."""
    return f"{socket.gethostname()[:40]}-{os.getpid()}-{random_id('w')[-6:].lower()}"


class WorkerSettings(Struct, frozen=True, kw_only=True):
    """One worker.

    `payloads`: folder, or URL of the object store, of artifacts and large values. `slots`: how many runs it holds
    at once. `lease_ms`, `renew_ms`: how long a lease lasts and how often it is renewed. `max_loop_stall_s`: how long
    its event loop may stand still before its leases are no longer renewed. `drain_s`: how long running activities
    may go on after SIGTERM before they are cancelled and their runs handed over. `linger_ms`: waits shorter than this
    are waited out with the lease held. `development`: work on a store that may lose acknowledged events. `scrub`: a
    regular expression of what must not be in any log, beside what `scrub` knows.
    """

    store_url: str
    payloads: Path | str
    name: str
    slots: int = 100
    lease_ms: int = LEASE_MS
    renew_ms: int = RENEW_MS
    max_loop_stall_s: float = 60.0
    drain_s: float = 5.0
    linger_ms: int = 2_000
    development: bool = False
    scrub: str = ""


_VARIABLES: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "SLOTS": ("slots", int),
    "LEASE_MS": ("lease_ms", int),
    "RENEW_MS": ("renew_ms", int),
    "MAX_LOOP_STALL_S": ("max_loop_stall_s", float),
    "DRAIN_S": ("drain_s", float),
    "LINGER_MS": ("linger_ms", int),
    "DEVELOPMENT": ("development", lambda text: bool(int(text))),
    "SCRUB": ("scrub", str),
}


def from_environment(environment: Mapping[str, str] = os.environ, **given: Any) -> WorkerSettings:
    """The settings that the environment names; `given` wins over it (None counts as not given).

    Raises `WorkerSettingsError`.
    """
    values: dict[str, Any] = {"name": new_worker_name()}
    if url := environment.get("TOWLINE_STORE_URL"):
        values["store_url"] = url
    if data := environment.get("TOWLINE_DATA"):
        values["payloads"] = Path(data).absolute() / "payloads"
    if where := environment.get(URL_VARIABLE):
        values["payloads"] = where
    for variable, text in environment.items():
        if not variable.startswith(PREFIX):
            continue
        row = _VARIABLES.get(variable.removeprefix(PREFIX))
        if row is None:
            known = ", ".join(PREFIX + name for name in _VARIABLES)
            raise WorkerSettingsError(f"{variable} is no setting of the worker: unset it; there are {known}")
        field, read = row
        try:
            values[field] = read(text)
        except ValueError:
            raise WorkerSettingsError(f"{variable}={text!r} is not a number") from None
        if field == "scrub":
            continue
        if values[field] < 0 or (values[field] == 0 and field not in ("drain_s", "linger_ms", "development")):
            raise WorkerSettingsError(f"{variable}={text!r} is too small")
    values.update({name: value for name, value in given.items() if value is not None})
    for field, variable in (("store_url", "TOWLINE_STORE_URL"), ("payloads", "TOWLINE_DATA")):
        if field not in values:
            raise WorkerSettingsError(f"{variable} is not set, and nothing else says it")
    where = values["payloads"]
    if isinstance(where, str):
        try:
            open_payloads(where)
        except ValueError as error:
            raise WorkerSettingsError(f"{URL_VARIABLE}={where!r} cannot be used: {error}") from None
    if values.get("renew_ms", RENEW_MS) * 2 > values.get("lease_ms", LEASE_MS):
        raise WorkerSettingsError("a lease must last at least twice as long as the time between two renewals")
    try:
        Scrubber(pattern=values.get("scrub", ""))
    except ValueError as error:
        raise WorkerSettingsError(f"{PREFIX}SCRUB: {error}") from None
    return WorkerSettings(**values)
