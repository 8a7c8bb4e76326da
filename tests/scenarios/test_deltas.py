"""kill -9 of worker, gateway and store while a text is streamed: what is shown ends as what stands in the log."""

import asyncio
from pathlib import Path

import pytest

from tests.support import talk
from tests.support.stack import Stack
from towline.protocol.client.actions import Delta
from towline.protocol.client.texts import UnfinishedTexts

pytestmark = pytest.mark.processes


async def test_worker_gateway_and_store_are_killed_while_a_text_is_streamed(tmp_path: Path) -> None:
    texts = UnfinishedTexts()
    shown: list[tuple[int, str]] = []
    kills: list[str] = []
    stack = Stack(tmp_path, workflows=Path(talk.__file__))
    async with stack, stack.client() as client:

        def kill() -> None:
            if "worker" not in kills:
                kills.append("worker")
                stack.workers[0].kill()
            elif "gateway" not in kills and shown[-1][0] > 1:
                kills.append("gateway")
                stack.gateways[0].kill()

        def show(delta: Delta) -> None:
            known = texts.receive_delta(delta.fields)
            if known is None:
                return
            assert talk.whole(known.attempt)[known.offset :].startswith(known.text)
            shown.append((known.attempt, known.text))
            if len(known.text) > 500:
                kill()

        async def watch() -> list[dict[str, object]]:
            started = await client.start("talk", None)
            completed = []
            async for event in client.events(started.id, on_delta=show):
                texts.receive_event(event.type, event.data)
                if event.type == "message.completed":
                    completed.append(event.data)
                if event.type == "run.taken_over" and "store" not in kills:
                    kills.append("store")
                    await asyncio.to_thread(stack.store.restart)
            return completed

        try:
            (data,) = await asyncio.wait_for(watch(), 120)
        except (AssertionError, ValueError, TimeoutError) as error:
            raise AssertionError(f"{error!r}\n{kills} {shown[-1:]}\n{stack.logs()}") from error
    assert set(kills) == {"worker", "gateway", "store"}
    attempt, text = shown[-1]
    assert (data["attempt"], data["partial"]) == (attempt, False)
    assert data["text"] == talk.whole(attempt)
    assert str(data["text"]).startswith(text)
    assert [one for one, _ in shown] == sorted(one for one, _ in shown)
    assert texts.texts == {}
