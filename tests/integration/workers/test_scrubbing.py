"""A run that says its secrets everywhere: nothing of them stands in the store but what only replay reads."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.workers import Stage
from towline.protocol.approvals import digest_of
from towline.workers import Context, Proposal, activity
from towline.workers.registry import Registry, Retry
from towline.workers.secrets import PREFIX, Secret

pytestmark = pytest.mark.store

CANARY = "c4nary-0f-th3-mine"
HERE = str(Path.cwd())


async def everything(workers: Stage) -> bytes:
    """Every value of the store but the private parts, which only history replay reads."""
    client: Any = workers.store._client
    found: list[Any] = []
    async for key in client.scan_iter(count=1000):
        kind = await client.type(key)
        if b":private:" in key or kind == b"none":
            continue
        read = {
            b"hash": client.hgetall,
            b"stream": client.xrange,
            b"zset": lambda name: client.zrange(name, 0, -1),
            b"string": client.get,
        }[kind]
        found.append(await read(key))
    return repr(found).encode()


async def test_nothing_of_a_secret_or_a_folder_is_appended(
    workers: Stage, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PREFIX + "MINE", CANARY)
    said = f"{CANARY} in {HERE}/x"
    attempts: list[str] = []

    async def leak(secret: Secret) -> str:
        assert secret.reveal() == CANARY
        for piece in ("it is ", CANARY[:7], CANARY[7:], " in ", HERE[:5], HERE[5:] + "/x", " end"):
            activity.delta(piece)
        activity.artifact(f"{CANARY}.txt", "bytes", "text/plain")
        attempts.append(said)
        if len(attempts) == 1:
            raise ValueError(said)
        return said

    async def fails() -> None:
        raise RuntimeError(said)

    leaks: Any = registry.activity(leak, effect="none", retry=Retry(attempts=2))
    failing: Any = registry.activity(fails, effect="none", retry=Retry(attempts=1))

    async def body(ctx: Context) -> dict[str, str]:
        items = await ctx.plan(said, why=said)
        await ctx.step(items[0], "active", note=said)
        await ctx.note(said, topic=said)
        assert await ctx.run(leaks, Secret("MINE")) == said
        try:
            await ctx.run(failing)
        except Exception as error:
            await ctx.note(f"heard: {error}")
        await ctx.artifact(f"{said}.md".replace("/", "_") + CANARY, "bytes", "text/plain")
        await ctx.publish("state", {said: [said]})
        await ctx.checkpoint(said, done=[said], next=[said])
        await ctx.approval(said, proposal=Proposal(said, [said], [said], said, said), questions=[said], why=said)
        await ctx.wait_signal("go", effect=said)
        ctx.summary(said)
        ctx.claim(said, ctx.evidence(leaks))
        return {said: said}

    registry.workflow(name="leaks", signals={"go": int})(body)
    await workers.worker()
    run = await workers.start("leaks")
    asked = await workers.wait_for(run, "approval.requested")
    assert digest_of(asked.data["request"], asked.data["proposal"], asked.data["questions"]) == asked.data["digest"]
    await workers.send(
        run,
        "approve",
        {
            "request": asked.data["request"],
            "digest": asked.data["digest"],
            "answers": {question["id"]: "yes" for question in asked.data["questions"]},
        },
    )
    await workers.send(run, "signal", {"name": "go", "payload": 1})
    assert (await workers.ended(run)).type == "run.completed", "and it replays"
    stored = await everything(workers)
    assert CANARY.encode() not in stored
    assert f"{HERE}/x".encode() not in stored
    assert stored.count(b"[secret] in [path]/x") > 15
    types = await workers.types(run)
    for type_ in ("tool.retrying", "tool.failed", "message.completed", "artifact.created", "command.applied"):
        assert type_ in types
