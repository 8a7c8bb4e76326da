"""A decision is for what was shown and nothing else; how its JSON was written does not matter.

The symptom: what the person approved was not what ran.
"""

from msgspec.structs import replace

from tests.cases.test_cmd_02 import PROPOSAL, ask, send
from tests.support.gateway import RunningGateway
from towline.protocol.approvals import digest_of


async def test_another_proposal_is_not_approved(gateway: RunningGateway) -> None:
    run = await gateway.start()
    shown = await ask(gateway, run)
    for other in (
        digest_of("apr_1", replace(PROPOSAL, intent="Delete the database"), []),
        digest_of("apr_2", PROPOSAL, []),
        shown.upper(),
        "sha256:",
        "",
    ):
        answer = await send(gateway, run, "approve", "k" + other[-8:].strip(":"), {"request": "apr_1", "digest": other})
        assert answer["code"] == "digest_mismatch"
        assert answer["status"] == 412
    assert (await send(gateway, run, "approve", "k", {"request": "apr_1", "digest": shown}))["status"] == "applied"


def test_the_digest_is_of_the_content() -> None:
    as_json = {
        "rollback": PROPOSAL.rollback, "intent": PROPOSAL.intent, "permissions": PROPOSAL.permissions,
        "lineage": PROPOSAL.lineage, "blast_radius": PROPOSAL.blast_radius,
    }  # fmt: skip
    assert digest_of("r", as_json, []) == digest_of("r", PROPOSAL, [])
