"""Recorded histories: a run's whole log with its private parts, as one file that must replay for ever.

The first line names the run, since derived ids depend on it. Then one JSON object a line: `id`, `e` (envelope),
`m` (meta), `p` (private part or null), each as the store has it.
"""

import json
from pathlib import Path

from towline.protocol import codec
from towline.protocol.codec import Entry
from towline.protocol.cursor import START
from towline.protocol.limits import STORE_PAGE_EVENTS
from towline.protocol.store.redis import RedisStore


async def record(store: RedisStore, run: str) -> str:
    """The log of `run` as such a file. Values that were spilled must have been put back by the caller."""
    lines = [json.dumps({"run": run})]
    after = START
    while True:
        page = await store.read_log(run, after, limit=STORE_PAGE_EVENTS, private=True)
        for entry in page.entries:
            lines.append(
                json.dumps(
                    {
                        "id": str(entry.cursor),
                        "e": entry.raw.decode(),
                        "m": codec.encode_meta(entry.meta).decode(),
                        "p": None if entry.private is None else entry.private.decode(),
                    }
                )
            )
            after = entry.cursor
        if len(page.entries) < STORE_PAGE_EVENTS:
            break
    return "\n".join(lines) + "\n"


def load(file: Path) -> tuple[str, list[Entry]]:
    """The run's id and its entries, in order."""
    entries: list[Entry] = []
    header, *lines = file.read_text().splitlines()
    for line in lines:
        row = json.loads(line)
        private = None if row["p"] is None else row["p"].encode()
        entries.append(codec.decode_entry(row["id"], row["e"].encode(), row["m"].encode(), private))
    return json.loads(header)["run"], entries
