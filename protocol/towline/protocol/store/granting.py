"""Changing who reaches a run: grants and shares, each change with its event while the log is open.

Promises that a run keeps an owner whoever races whom, that a repeat changes nothing and writes no second event, and
that the token of a share is known only to who made it. Leaves who may do this to the gateway. Read `grants` first.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from towline.protocol import event_data as d
from towline.protocol import grants as g
from towline.protocol.codec import NewEntry
from towline.protocol.errors import problem
from towline.protocol.events import Actor
from towline.protocol.grants import GrantRole, Share, ShareToken
from towline.protocol.ids import random_id
from towline.protocol.limits import CHANGED_ATTEMPTS
from towline.protocol.store import api
from towline.protocol.store.keys import co_owned, listed_for, listed_for_group
from towline.protocol.store.redis import RedisStore


def listing_of(entry: str) -> str:
    """Prefix of the index under which a run stands for the holder of a grant."""
    kind, _, name = entry.partition(":")
    return listed_for(name) if kind == "user" else listed_for_group(name)


def listings_of(entry: str, role: GrantRole, starter: str) -> list[str]:
    """All prefixes under which the run of `starter` stands for the holder of a grant with this role."""
    return [listing_of(entry), *([co_owned(entry, starter)] if role == "owner" else [])]


def initial(starter: str, grants: Mapping[str, str]) -> dict[str, GrantRole]:
    """The grants that a run starts with, checked. Raises `bad_request` that names the field."""
    if len(grants) > g.GRANTS_MAX:
        raise problem("bad_request", "Too many grants.", field="grants", limit=g.GRANTS_MAX)
    checked: dict[str, GrantRole] = {
        g.check_entry(entry, field="grants"): g.check_role(role, field=f"grants.{entry}")
        for entry, role in grants.items()
    }
    if not g.is_owned({f"user:{starter}": "owner", **checked}):
        raise problem("bad_request", "A run has an owner.", field="grants")
    return checked


async def grants_of(store: RedisStore, run: str) -> dict[str, GrantRole]:
    """All grants of a run by entry, its starter's included. Raises `NoRun`, `RunGone`."""
    facts = await store.facts(run)
    return g.effective(facts.owner, await store.side_matching(run, "g|"))


async def set_grant(store: RedisStore, run: str, entry: str, role: GrantRole | None, *, by: str) -> None:
    """Gives `entry` a role on `run`, or with None takes it away; nothing happens where it is so already.

    Raises `ProblemError` (`bad_request`, `conflict` for the last owner), and what the store raises.
    """
    g.check_entry(entry, field="subject")

    async def prepare(standing: api.Standing) -> api.AccessChange | None:
        before = g.effective(standing.facts.owner, await store.side_matching(run, "g|"))
        if before.get(entry) == role:
            return None
        after: dict[str, GrantRole] = {name: held for name, held in before.items() if name != entry}
        if role is not None:
            after[entry] = role
        if not g.is_owned(after):
            raise problem("conflict", "This is the last owner; make somebody else one first.", field="subject")
        if len(after) > g.GRANTS_MAX:
            raise problem("conflict", "The run has too many grants; take one away first.", limit=g.GRANTS_MAX)
        data = d.AccessChanged(subject=entry, role=role, by=f"user:{by}")
        starter = standing.facts.owner
        is_starter = entry == f"user:{starter}"
        return api.AccessChange(
            run=run,
            version=standing.version,
            entries=[NewEntry("access.changed", Actor("user", by), data)],
            side={g.grant_field(entry): role or ""} if role is not None or is_starter else {},
            dropped=[g.grant_field(entry)] if role is None and not is_starter else [],
            listed=[] if role is None else listings_of(entry, role, starter),
            unlisted=[
                *([listing_of(entry)] if role is None else []),
                *([co_owned(entry, starter)] if role != "owner" else []),
            ],
            relief=role is None,
        )

    await _change(store, run, prepare)


async def create_share(
    store: RedisStore, run: str, *, expires_in_ms: int, deltas: bool, by: str
) -> tuple[Share, ShareToken]:
    """A new share, and its token, which is kept nowhere. Raises as `set_grant`."""
    secret = g.new_secret()
    now_ms = store.now_ms()
    share = Share(random_id("shr"), g.hash_of(secret), now_ms + expires_in_ms, now_ms, f"user:{by}", deltas)

    async def prepare(standing: api.Standing) -> api.AccessChange | None:
        kept = await _shares(store, run)
        lapsed = [other.share for other in kept if other.expires_at_ms <= now_ms]
        if len(kept) - len(lapsed) >= g.SHARES_MAX:
            raise problem("conflict", "The run has too many shares; revoke one first.", limit=g.SHARES_MAX)
        return api.AccessChange(
            run=run,
            version=standing.version,
            side={g.share_field(share.share): msgspec.json.encode(share).decode()},
            dropped=[g.share_field(name) for name in lapsed],
        )

    await _change(store, run, prepare)
    return share, ShareToken(run, share.share, secret)


async def shares_of(store: RedisStore, run: str) -> list[Share]:
    """The shares of a run that still open it, oldest first."""
    kept = await _shares(store, run)
    return sorted((s for s in kept if s.expires_at_ms > store.now_ms()), key=lambda s: (s.created_at_ms, s.share))


async def revoke_share(store: RedisStore, run: str, share: str) -> None:
    """Ends a share; one that is none any more is left as it is. Raises as `set_grant`."""

    async def prepare(standing: api.Standing) -> api.AccessChange | None:
        if g.share_field(share) not in standing.fields:
            return None
        return api.AccessChange(run=run, version=standing.version, dropped=[g.share_field(share)], relief=True)

    await _change(store, run, prepare, [g.share_field(share)])


async def _shares(store: RedisStore, run: str) -> list[Share]:
    fields = await store.side_matching(run, "s|")
    return [msgspec.json.decode(text, type=Share) for text in fields.values()]


async def _change(
    store: RedisStore,
    run: str,
    prepare: Callable[[api.Standing], Awaitable[api.AccessChange | None]],
    fields: Sequence[str] = (),
) -> None:
    """Prepares and writes a change, again and again while others change the same."""
    for _ in range(CHANGED_ATTEMPTS):
        change = await prepare(await store.standing(run, fields))
        if change is None:
            return
        try:
            await store.change_access(change)
        except api.Changed:
            continue
        return
    raise problem("overloaded", "Access to the run changes too fast; send it again.", retry_after_ms=200)
