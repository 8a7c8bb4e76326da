"""The doctor: is this store fit to hold runs, and does the stack around it answer?

Promises one report of everything that `towline doctor` looks at, also when parts of it are broken: the server's
version and settings (judged by `protocol.store.durability`), its clock against ours, the free space of the data
folder, and whether the gateway answers. Changes nothing. Each finding names what to change.
"""

import asyncio
import json
import shutil
import time
from pathlib import Path
from typing import Any, Final

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from towline.deploy.local_http import get_json
from towline.deploy.settings import data_of, store_url_of
from towline.protocol.store.connection import open_client, translated
from towline.protocol.store.durability import Finding, check
from towline.protocol.store.probe import facts_of

SKEW_MAX_MS: Final = 1_000
DISK_REFUSE_BYTES: Final = 100 * 1024**2
DISK_WARN_BYTES: Final = 1024**3


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What was looked at. `skew_ms`: the store's clock minus ours, exact to half of `round_trip_ms`."""

    store: str
    server: str
    skew_ms: int
    round_trip_ms: int
    disk_free_bytes: int | None
    gateway: str | None
    findings: list[Finding]

    @property
    def refuses(self) -> bool:
        """Whether Towline would not start on this store."""
        return any(finding.severity == "refuse" for finding in self.findings)


async def examine(url: str, data: Path | None) -> Report:
    """Looks at the store at `url` and at the folder. Raises `StoreUnavailable` when nothing answers at `url`."""
    client = open_client(url)
    try:
        with translated():
            findings = await check(client)
            facts = facts_of(await client.info("server"))
            sent_s, sent_wall_ms = time.monotonic(), time.time() * 1000
            seconds, micros = await client.time()
            round_trip_ms = (time.monotonic() - sent_s) * 1000
    finally:
        await client.aclose()
    skew_ms = round(seconds * 1000 + micros / 1000 - sent_wall_ms - round_trip_ms / 2)
    free_bytes = _disk_free_bytes(data)
    gateway, about_gateway = await asyncio.to_thread(_gateway, data)
    findings = [*findings, *of_clock(skew_ms, round(round_trip_ms)), *of_disk(free_bytes), *about_gateway]
    return Report(
        store=url,
        server=f"{facts.name} {facts.version}",
        skew_ms=skew_ms,
        round_trip_ms=round(round_trip_ms),
        disk_free_bytes=free_bytes,
        gateway=gateway,
        findings=sorted(findings, key=lambda finding: finding.severity),
    )


def of_clock(skew_ms: int, round_trip_ms: int) -> list[Finding]:
    """What the difference of the clocks means, given how exactly it is known."""
    if abs(skew_ms) - round_trip_ms / 2 < SKEW_MAX_MS:
        return []
    return [
        Finding(
            "clock",
            "warn",
            f"The store's clock is {abs(skew_ms) / 1000:.1f} s {'ahead of' if skew_ms > 0 else 'behind'} ours",
            "Let both keep time by NTP (chrony or systemd-timesyncd)",
        )
    ]


def of_disk(free_bytes: int | None) -> list[Finding]:
    """Whether the data folder has room for the log and its rewrite."""
    if free_bytes is None or free_bytes >= DISK_WARN_BYTES:
        return []
    return [
        Finding(
            "disk",
            "refuse" if free_bytes < DISK_REFUSE_BYTES else "warn",
            f"The disk of the data folder has {free_bytes / 1024**2:.0f} MiB left",
            "Free space, or choose another folder with --data",
        )
    ]


def _disk_free_bytes(data: Path | None) -> int | None:
    return shutil.disk_usage(data).free if data is not None and data.exists() else None


def _gateway(data: Path | None) -> tuple[str | None, list[Finding]]:
    """The address of the folder's gateway, and what is wrong with it; None when none is running there."""
    if data is None:
        return None, []
    try:
        url: Any = json.loads((data / "dev.json").read_text())["url"]
    except (OSError, ValueError, KeyError, TypeError):
        return None, []
    answer = get_json(str(url), "/readyz")
    if answer.status == 200:
        return str(url), []
    how = f"answers {answer.status}" if answer.status else "does not answer"
    return str(url), [
        Finding(
            "gateway",
            "warn",
            f"The gateway at {url} {how}",
            f"Look at the output of 'towline dev --data {data}', or start it again",
        )
    ]


async def run_doctor(data: Path | None, url: str | None, *, as_json: bool) -> int:
    """Prints the report: a table for people, one JSON object for programs. 1 when something refuses.

    Raises `SettingsError`, `StoreFailed` or `StoreUnavailable` when there is no store to look at.
    """
    store_url = store_url_of(data, url)
    report = await examine(store_url, data or (data_of() if url is None else None))
    if as_json:
        print(msgspec.json.encode({**msgspec.to_builtins(report), "ok": not report.refuses}).decode())
    else:
        show(report)
    return 1 if report.refuses else 0


def show(report: Report) -> None:
    """The report as a table."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_row("store", f"{report.server} at {report.store}")
    table.add_row("clock", f"{report.skew_ms:+d} ms from this machine's (± {max(1, report.round_trip_ms // 2)} ms)")
    if report.disk_free_bytes is not None:
        table.add_row("disk", f"{report.disk_free_bytes / 1024**3:.1f} GiB free")
    table.add_row("gateway", report.gateway or "none known: no 'towline dev' runs in this folder")
    for finding in report.findings:
        table.add_row(f"[bold]{finding.severity}[/bold]", escape(f"{finding.text}. {finding.remedy}."))
    if not report.findings:
        table.add_row("verdict", "fit for use; nothing to change")
    elif report.refuses:
        table.add_row("verdict", "not fit for use: Towline refuses to start on this store")
    else:
        table.add_row("verdict", "fit for use, with the warnings above")
    Console().print(table)
