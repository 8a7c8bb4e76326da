"""Grants and shares on a real store: one owner at least whoever races whom, no second event, no token kept."""

import asyncio

import pytest

from tests.support.lab import Lab, ending
from towline.protocol import grants as g
from towline.protocol.errors import ProblemError
from towline.protocol.store import granting

pytestmark = pytest.mark.store


async def test_a_grant_is_given_changed_and_taken_with_one_event_each(lab: Lab) -> None:
    await lab.create()
    for role in ("viewer", "viewer", "owner", None, None):
        await granting.set_grant(lab.store, "r1", "user:bob", role, by="alice")
    entries = [entry.event() for entry in await lab.log()]
    assert [(e.data["subject"], e.data["role"], e.data["by"]) for e in entries[1:]] == [
        ("user:bob", "viewer", "user:alice"),
        ("user:bob", "owner", "user:alice"),
        ("user:bob", None, "user:alice"),
    ]
    assert {(e.type, e.actor.id, e.audience) for e in entries[1:]} == {("access.changed", "alice", "collaborator")}
    assert await granting.grants_of(lab.store, "r1") == {"user:alice": "owner"}


async def test_the_last_owner_stays(lab: Lab) -> None:
    await lab.create()
    for role in (None, "viewer", "collaborator"):
        with pytest.raises(ProblemError) as refused:
            await granting.set_grant(lab.store, "r1", "user:alice", role, by="alice")
        assert refused.value.problem.code == "conflict"
    await granting.set_grant(lab.store, "r1", "group:ops", "owner", by="alice")
    await granting.set_grant(lab.store, "r1", "user:alice", None, by="alice")
    with pytest.raises(ProblemError):
        await granting.set_grant(lab.store, "r1", "group:ops", None, by="root")
    assert await granting.grants_of(lab.store, "r1") == {"group:ops": "owner"}
    assert [run for _, run in await lab.store.list_runs("r|alice|", before=None, limit=9)] == []
    assert [run for _, run in await lab.store.list_runs("rg|ops|", "r|alice|", before=None, limit=9)] == ["r1"]


async def test_who_owns_by_grant_finds_whose_runs_these_are(lab: Lab) -> None:
    await lab.create()
    await granting.set_grant(lab.store, "r1", "user:b|b", "owner", by="alice")
    await granting.set_grant(lab.store, "r1", "group:ops", "viewer", by="alice")
    assert await lab.store.starters_for(["user:b|b", "group:ops"]) == ["alice"]
    assert await lab.store.starters_for(["user:b", "group:ops", "user:alice"]) == []
    await granting.set_grant(lab.store, "r1", "user:b|b", "viewer", by="alice")
    assert await lab.store.starters_for(["user:b|b"]) == []


async def test_two_owners_who_remove_each_other_leave_one(lab: Lab) -> None:
    for number in range(10):
        run = f"r{number}"
        await lab.create(run)
        await granting.set_grant(lab.store, run, "user:bob", "owner", by="alice")
        outcomes = await asyncio.gather(
            granting.set_grant(lab.store, run, "user:bob", None, by="alice"),
            granting.set_grant(lab.store, run, "user:alice", None, by="bob"),
            return_exceptions=True,
        )
        assert len([o for o in outcomes if isinstance(o, ProblemError)]) == 1
        assert list((await granting.grants_of(lab.store, run)).values()) == ["owner"]


async def test_many_at_once_each_have_their_grant(lab: Lab) -> None:
    await lab.create()
    names = [f"user:u{n}" for n in range(4)]
    await asyncio.gather(*(granting.set_grant(lab.store, "r1", name, "viewer", by="alice") for name in names))
    assert set(await granting.grants_of(lab.store, "r1")) == {"user:alice", *names}
    assert (await lab.types()).count("access.changed") == 4


async def test_a_run_takes_a_bounded_number(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    await lab.create()
    monkeypatch.setattr(g, "GRANTS_MAX", 2)
    monkeypatch.setattr(g, "SHARES_MAX", 1)
    await granting.set_grant(lab.store, "r1", "user:bob", "viewer", by="alice")
    with pytest.raises(ProblemError, match="too many grants"):
        await granting.set_grant(lab.store, "r1", "user:eve", "viewer", by="alice")
    await granting.create_share(lab.store, "r1", expires_in_ms=1000, deltas=False, by="alice")
    with pytest.raises(ProblemError, match="too many shares"):
        await granting.create_share(lab.store, "r1", expires_in_ms=1000, deltas=False, by="alice")
    await lab.pass_ms(1001)
    await granting.create_share(lab.store, "r1", expires_in_ms=1000, deltas=False, by="alice")  # the other lapsed
    assert len(await lab.store.side_matching("r1", "s|")) == 1


async def test_shares_change_on_a_sealed_run_too_and_nothing_kept_opens_them(lab: Lab) -> None:
    lease = await lab.held()
    await lab.store.close(lab.commit(lease, 1, ending()))
    before = await lab.types()
    share, token = await granting.create_share(lab.store, "r1", expires_in_ms=1000, deltas=True, by="alice")
    assert [s.share for s in await granting.shares_of(lab.store, "r1")] == [share.share]
    assert token.secret not in str(await lab.dump())
    assert token.opens(share)
    await granting.revoke_share(lab.store, "r1", share.share)
    await granting.revoke_share(lab.store, "r1", share.share)
    assert await granting.shares_of(lab.store, "r1") == []
    assert await lab.types() == before
    assert await lab.field("access") == "2"


async def test_a_ticket_is_spent_once_and_ends(lab: Lab) -> None:
    digest = g.hash_of("tkt")
    await lab.store.keep_ticket(digest, "what", 60_000)
    assert await lab.store.ticket(digest, spend=False) == "what"
    spent = await asyncio.gather(*(lab.store.ticket(digest, spend=True) for _ in range(20)))
    assert sorted(spent, key=str) == [None] * 19 + ["what"]
