"""What the calls answer, as types: the part of the descriptions that no decoder needs.

Promises that each answer of the contract has a type whose schema is published and held against the running server.
Handlers answer plain JSON; two types are only names here, since they are made from others: the Run as its caller
reads it, and an event of any type (`describing.shapes`).
"""

from typing import Any, Literal

from msgspec import Struct

from towline.protocol.events import Audience
from towline.protocol.tokens import GlobalRole, Verb
from towline.protocol.values import JsonObject, OnBusy, Status, Stopping, Vote


class Run(Struct):
    """A Run as its caller reads it."""


class Event(Struct):
    """An event as its caller reads it."""


class Problem(Struct):
    """RFC 9457 problem details."""


class Runs(Struct):
    """A page of Runs. It may hold fewer than `limit`, even none, while `next_page` is present."""

    items: list[Run]
    next_page: str | None


class Events(Struct):
    """A page of a log. `cursor` is where to go on; `closed`: the run has ended and nothing is left to read."""

    events: list[Event]
    cursor: str
    head: int
    first_seq: int
    closed: bool
    recovery: Literal["resumed", "reset", "snapshot"]
    recovery_code: Literal["ahead", "diverged", "trimmed", "limited"] | None = None
    lost: tuple[int, int] | None = None


class Request(Struct):
    """A question of a run to people, open or resolved."""

    id: str
    kind: str
    title: str | None
    since: str | None
    expires_at: str | None
    seq: int | None
    may_answer: bool
    request: JsonObject | None
    outcome: str | None
    decisions: list[Vote]


class Published(Struct):
    """A value that a workflow published under a name."""

    name: str
    value: Any
    audience: str
    published_at: str


class InboxRun(Struct):
    """The run of an item of the inbox, for a list."""

    id: str
    headline: str | None
    workflow: str
    thread: str | None
    owner: str | None
    status: str


class InboxItem(Struct):
    """Something that waits for the caller: a question (`request`, as in `waiting_on`) or a `blocker`."""

    kind: str
    run: InboxRun
    request: JsonObject | None
    blocker: JsonObject | None
    since: str
    expires_at: str | None


class Inbox(Struct):
    """A page of what waits for the caller."""

    items: list[InboxItem]
    next_page: str | None


class Artifact(Struct):
    """Something a run made."""

    id: str
    name: str
    media_type: str
    size: int
    sha256: str
    seq: int | None
    audience: Audience
    created_at: str


class Artifacts(Struct):
    """A page of what a run made and the caller may read."""

    items: list[Artifact]
    next_page: str | None


class Workflow(Struct):
    """A workflow, with the schemas of its newest version."""

    name: str
    versions: list[str]
    input_schema: JsonObject
    signals: dict[str, JsonObject]
    updates: list[str]
    queries: list[str]
    accepts: list[str]
    on_busy: OnBusy


class Workflows(Struct):
    """What workers offer."""

    items: list[Workflow]
    next_page: None


class Whoami(Struct):
    """Who calls."""

    subject: str
    roles: list[GlobalRole]
    groups: list[str]
    verbs: list[Verb] | None
    runs: list[str] | None
    expires_at: str


class Health(Struct):
    """The process answers."""

    status: Literal["ok", "ready"]


class UploadMade(Struct):
    """Bytes that wait for a run to name them."""

    ref: str
    size: int
    sha256: str
    media_type: str
    expires_at: str


class Grant(Struct):
    """A role on a run: `subject` as in `deciders`."""

    subject: str
    role: Literal["viewer", "collaborator", "owner"]


class Grants(Struct):
    """Who else may reach a run."""

    items: list[Grant]
    next_page: None


class Share(Struct):
    """A read-only link, without its token."""

    share: str
    role: Literal["viewer"]
    deltas: bool
    created_at: str
    expires_at: str
    by: str


class Shares(Struct):
    """The links to a run."""

    items: list[Share]
    next_page: None


class ShareMade(Share):
    """A new link: its token is told this once."""

    token: str
    url: str


class TicketMade(Struct):
    """A ticket, told this once."""

    ticket: str
    expires_at: str


class Lease(Struct):
    """What to show as `Towline-Lease`, and for how long it holds unless renewed."""

    token: str
    ttl_ms: int


class Held(Struct):
    """A run of one's own. `lease` is null where the run existed before: claim it."""

    run: Run
    lease: Lease | None


class Claimed(Struct):
    """A run that is the caller's to work on. `commands`: accepted ones without outcome."""

    run: Run
    input: Any
    lease: Lease
    head: int
    commands: list[Event]


class Renewed(Struct):
    """A lease that holds on, and what its holder must know."""

    expires_at: str
    head: int
    stopping: Stopping | None
    pausing: bool


class History(Struct):
    """Events, each with the `private` part that its writer stored."""

    events: list[Event]
    cursor: str
    head: int
    first_seq: int


class Inputs(Struct):
    """Commands and decisions. `cursor` is what was seen once they are read."""

    events: list[Event]
    cursor: str
    head: int


class Appended(Struct):
    """Where a commit stands in the log."""

    first_seq: int
    last_seq: int
    cursor: str
    status: Status


class Kept(Struct):
    """Bytes that an event may name."""

    ref: str
    sha256: str
    size: int


class ArtifactMade(Struct):
    """An artifact that stands in the log now."""

    id: str
    name: str
    media_type: str
    size: int
    sha256: str
    seq: int | None = None
    audience: Audience | None = None
