"""kill -9 of a gateway that deletes a run: whoever asks again finds it deleted, and no byte of it stays."""

from pathlib import Path

import httpx
import pytest

from tests.scenarios.test_kills import PURGE_POINTS
from tests.support.stack import Stack
from tests.support.waiting import wait_until
from towline.deploy.settings import make_secret
from towline.protocol.tokens import mint

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("point", PURGE_POINTS)
async def test_a_gateway_dies_while_it_deletes_a_run(tmp_path: Path, point: str) -> None:
    async with Stack(tmp_path, workers=0, crash_gateway=f"{point}:1") as stack:
        token = mint(make_secret(stack.data).encode(), subject="ana", roles=["worker", "operator"], ttl_s=3600)
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(base_url=stack.urls[0], headers=headers) as http:
            body = {"workflow": "any", "queue": None, "input": {"text": "x" * 100_000}}
            started = (await http.post("/v1/runs", json=body)).json()
            run = started["run"]["id"]
            folder = next(path for path in (stack.data / "payloads").iterdir() if path.name.endswith(run))
            lease = {"Towline-Lease": started["lease"]["token"]}
            made = await http.put(f"/v1/runs/{run}/artifacts/a", content=b"made", headers=lease)
            assert made.status_code == 201, made.text
            assert (await http.post(f"/v1/runs/{run}/cancel", json={"grace_ms": 0})).is_success

            async def has_ended() -> bool:
                return bool((await http.get(f"/v1/runs/{run}")).json()["ended_at"])

            await wait_until(has_ended, "the run to end")

            async def is_deleted() -> bool:
                try:
                    return (await http.delete(f"/v1/runs/{run}")).status_code == 204
                except httpx.HTTPError:
                    return False

            await wait_until(is_deleted, "the deletion to be acknowledged", 60)
            assert stack.has_killed()
            assert (await http.get(f"/v1/runs/{run}")).json()["code"] == "gone"
            assert not folder.exists()
