"""A live run whose log was trimmed below the entry with which it began anew."""

import secrets
from typing import Any

from tests.support.gateway import AGENT, Hand, RunningGateway
from towline.protocol import event_data as d
from towline.protocol.codec import NewEntry
from towline.protocol.events import Actor
from towline.protocol.store import api
from towline.protocol.store.trimming import trim


async def channel_run(gateway: RunningGateway, **members: Any) -> str:
    """A run of ana without a queue: only such a run may be trimmed yet."""
    run = f"run-{secrets.token_hex(8)}"
    data = d.RunCreated(workflow="toy", version="1", owner="ana", headline="toy", grants={}, budget=None, queue=None)
    created = NewEntry("run.created", Actor("user", "ana"), data, private=b'{"input":1}')
    new = api.NewRun(
        run=run, nonce=secrets.token_hex(8), fingerprint="f:1", owner="ana", workflow="toy", version="1", queue="",
        created=created, **members,
    )  # fmt: skip
    await gateway.store.create_run(new)
    return run


async def begun_anew(gateway: RunningGateway, before: int, after: int, **members: Any) -> tuple[str, Hand, list[str]]:
    """`before` entries, the last of which made an artifact, then `run.continued` and `after` notes; and all cursors.

    The first is that of the start; nothing is trimmed yet.
    """
    run = await channel_run(gateway, **members)
    hand = await gateway.hold(run)
    sha256 = await gateway.services.payloads.of(run).put(b"made")
    made = d.ArtifactCreated(artifact="old", name="old.txt", media_type="text/plain", size=4, sha256=sha256)
    entry = NewEntry("artifact.created", AGENT, made)
    await hand.note(count=before - 3)
    again = NewEntry("run.continued", AGENT, d.RunContinued(generation=1), private=b'{"input":2}')
    await hand.write(entry, again)
    await hand.note(count=after)
    cursors = ["0", *[str(entry.cursor) async for entry in gateway.store.entries(run)]]
    assert len(cursors) == before + after + 2
    return run, hand, cursors


async def trim_run(gateway: RunningGateway, hand: Hand) -> int:
    """Trims the run; the first seq that is left."""
    hand.seen = (await gateway.store.facts(hand.run)).head  # what it had seen before is about to go
    return await trim(gateway.store, hand.run, hand.fence)
