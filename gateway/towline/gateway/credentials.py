"""From what a caller presents to a credential: a JWT, the token of a share, or a ticket.

Promises that each of them is judged here and nowhere else, that a ticket is good for its kind, its run and its Origin
alone, a socket's only once, and that the store holds no text that would open anything. What is refused is refused
with one sentence that does not tell a wrong credential from one that ended or was taken away. Leaves what a credential
may do with a run to `access`.
"""

import hashlib
import secrets
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from towline.gateway.issuer import Issuer
from towline.gateway.settings import Settings
from towline.protocol import grants, verifying
from towline.protocol.jwks import PublicKey
from towline.protocol.store.api import NoRun, RunGone
from towline.protocol.store.redis import RedisStore
from towline.protocol.tokens import BadToken, Credential
from towline.protocol.verifying import Keyring, UnknownKey

TicketKind = Literal["socket", "events", "artifact"]
SOCKET_MS: Final = 30_000
ARTIFACT_MS: Final = 300_000
_TICKET_CHARS: Final = 64
_VERIFIED: Final = 10_000
"""How many tokens are remembered."""
Name = Annotated[str, Meta(min_length=1, max_length=128)]


class Ticket(Struct, frozen=True, kw_only=True):
    """What a ticket stands for, as the store keeps it under a hash of its text."""

    kind: TicketKind
    credential: Credential
    origin: str | None
    run: str | None = None
    artifact: str | None = None


class Credentials:
    """The judge of one gateway."""

    def __init__(self, settings: Settings, store: RedisStore) -> None:
        self._store = store
        self._secret = settings.jwt_secret
        self._issuer = None if settings.jwks is None else Issuer(settings.jwks)
        self._whose = (settings.issuer, settings.audience)
        self._verified: OrderedDict[bytes, tuple[Credential, Sequence[PublicKey]]] = OrderedDict()
        """By a hash of their text: what was verified lately, and with which keys."""

    async def verify(self, token: str) -> Credential:
        """The credential that a token proves. Raises `BadToken`, `unavailable`, and what the store raises."""
        if token.startswith("share~"):
            return await self._share(token)
        try:
            return self._judged(token, ())
        except UnknownKey:
            if self._issuer is None:
                raise
        try:
            return self._judged(token, await self._issuer.keys())
        except UnknownKey:
            return self._judged(token, await self._issuer.keys(anew=True))

    def _judged(self, token: str, public: Sequence[PublicKey]) -> Credential:
        """What `token` proves with these keys. One that holds is checked once while it and the keys stay the same."""
        if not token.isascii():
            raise BadToken("It is not a JWT.")
        name = hashlib.sha256(token.encode()).digest()
        kept = self._verified.get(name)
        if kept is not None and kept[1] is public and kept[0].expires_at_ms > time.time() * 1000:
            return kept[0]
        credential = verifying.verify(Keyring(self._secret, public, *self._whose), token)
        self._verified[name] = credential, public
        if len(self._verified) > _VERIFIED:
            self._verified.popitem(last=False)
        return credential

    async def _share(self, text: str) -> Credential:
        token = grants.read_share_token(text)
        kept = None
        if token is not None:
            field = grants.share_field(token.share)
            try:
                kept = (await self._store.standing(token.run, [field])).fields.get(field)
            except RunGone as gone:
                kept = gone.fields.get(field)
            except NoRun:
                kept = None
        share = None if kept is None else msgspec.json.decode(kept, type=grants.Share)
        if token is None or share is None or not token.opens(share) or share.expires_at_ms <= self._store.now_ms():
            raise BadToken("It is no link that opens anything.")
        return Credential(
            subject=f"share:{share.share}",
            expires_at_ms=share.expires_at_ms,
            roles=("user",),
            verbs=("read",),
            runs=(token.run,),
            share=share.share,
            deltas=share.deltas,
        )

    async def issue(self, ticket: Ticket) -> tuple[str, int]:
        """A new ticket's text and when it ends (ms). Only its hash is kept."""
        text = f"tkt_{secrets.token_urlsafe(32)}"
        now_ms = self._store.now_ms()
        left_ms = ticket.credential.expires_at_ms - now_ms
        life_ms = {"socket": SOCKET_MS, "artifact": ARTIFACT_MS, "events": left_ms}[ticket.kind]
        ttl_ms = max(1, min(life_ms, left_ms))
        await self._store.keep_ticket(grants.hash_of(text), msgspec.json.encode(ticket).decode(), ttl_ms)
        return text, now_ms + ttl_ms

    async def redeem(
        self, text: str, kind: TicketKind, origin: str | None, *, run: str | None = None, artifact: str | None = None
    ) -> Credential:
        """The credential behind a ticket of this kind. Raises `BadToken`, and what the store raises."""
        kept = None
        if text.startswith("tkt_") and text.isascii() and len(text) <= _TICKET_CHARS:
            kept = await self._store.ticket(grants.hash_of(text), spend=kind == "socket")
        ticket = None if kept is None else msgspec.json.decode(kept, type=Ticket)
        if (
            ticket is None
            or (ticket.kind, ticket.run, ticket.artifact) != (kind, run, artifact)
            or not _is_from(ticket, origin)
            or ticket.credential.expires_at_ms <= self._store.now_ms()
        ):
            raise BadToken("It is no ticket for this, was used, or has ended; get a new one.")
        return ticket.credential


def _is_from(ticket: Ticket, origin: str | None) -> bool:
    """Whether a ticket may be used from there. A page's own images and streams carry no Origin; its sockets do."""
    if ticket.origin is None:
        return True
    return origin == ticket.origin or (origin is None and ticket.kind != "socket")
