"""Commands: what people may ask of a run, how each is validated, and the receipt they get.

Promises that `COMMANDS` is the whole list and that `decode` turns any `type` and `data` into a typed command
or a problem that names the field. Leaves acceptance (rights, state, dedup) to the store's preparation in
`store.acceptance` and to the script.
"""

import hashlib
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from towline.protocol.errors import Problem, problem
from towline.protocol.ids import is_command_id, is_name
from towline.protocol.limits import GRACE_MAX_MS
from towline.protocol.validation import to_type
from towline.protocol.values import JsonObject

Applies = Literal["now", "next_step", "when_resumed"]
ReceiptStatus = Literal["refused", "accepted", "applied", "rejected"]
CommandRole = Literal["viewer", "decider", "collaborator", "owner", "operator"]
Reason = Annotated[str, Meta(max_length=1000)]
When = Literal["next_step", "interrupt"]


class Decide(Struct, frozen=True):
    """Data of `approve` and `reject`. `digest` binds the decision to what was shown."""

    request: str
    digest: str
    comment: Reason | None = None
    answers: dict[str, str] | None = None


class Respond(Struct, frozen=True):
    request: str
    value: Any


class Pause(Struct, frozen=True):
    reason: Reason | None = None


class Revise(Struct, frozen=True):
    instruction: Annotated[str, Meta(min_length=1)]
    when: When = "next_step"


class AddContext(Struct, frozen=True):
    text: str | None = None
    ref: str | None = None
    title: str | None = None
    when: When = "next_step"


class Cancel(Struct, frozen=True):
    """`grace_ms`: how long the run may clean up before it is closed, whoever runs it."""

    reason: Reason | None = None
    grace_ms: Annotated[int, Meta(ge=0, le=GRACE_MAX_MS)] | None = None


class Signal(Struct, frozen=True):
    """Data of `signal` and `update`."""

    name: str
    payload: Any | UnsetType = UNSET


class SetBudget(Struct, frozen=True):
    caps: JsonObject
    reason: Reason | None = None


class Retry(Struct, frozen=True):
    blocker: str | None = None
    version: str | None = None


class CommandType(Struct, frozen=True):
    """One row: the struct of `data`, who may send it, and whether the accepting step applies it.

    `counts`: whether it is one of those that are bounded while unapplied.
    """

    data: type[Struct]
    role: CommandRole
    applied_on_acceptance: bool
    counts: bool = False


COMMANDS: Final[dict[str, CommandType]] = {
    "approve": CommandType(Decide, "decider", applied_on_acceptance=True),
    "reject": CommandType(Decide, "decider", applied_on_acceptance=True),
    "respond": CommandType(Respond, "decider", applied_on_acceptance=True),
    "pause": CommandType(Pause, "collaborator", applied_on_acceptance=True),
    "resume": CommandType(Pause, "collaborator", applied_on_acceptance=True),
    "revise": CommandType(Revise, "collaborator", applied_on_acceptance=False, counts=True),
    "add_context": CommandType(AddContext, "collaborator", applied_on_acceptance=False, counts=True),
    "cancel": CommandType(Cancel, "owner", applied_on_acceptance=False),
    "signal": CommandType(Signal, "collaborator", applied_on_acceptance=False, counts=True),
    "update": CommandType(Signal, "collaborator", applied_on_acceptance=False, counts=True),
    "set_budget": CommandType(SetBudget, "owner", applied_on_acceptance=True),
    "retry": CommandType(Retry, "operator", applied_on_acceptance=True),
}

SERVED: Final = frozenset({"approve", "reject", "respond", "signal", "cancel", "pause", "resume"})
"""The commands that are served today; the others answer `unsupported`."""


_ROLES: Final[Mapping[CommandRole, frozenset[str]]] = {
    "viewer": frozenset({"viewer", "collaborator", "owner", "operator"}),
    "decider": frozenset({"viewer", "collaborator", "owner", "operator"}),
    "collaborator": frozenset({"collaborator", "owner", "operator"}),
    "owner": frozenset({"owner", "operator"}),
    "operator": frozenset({"operator"}),
}


def may_send(type_: str, role: str) -> bool:
    """Whether a caller with `role` on a run may send commands of this type at all."""
    return role in _ROLES[COMMANDS[type_].role]


class Command(Struct, frozen=True):
    """One valid command as it was sent. `body` is its canonical JSON, which a repeat must equal."""

    type: str
    data: Struct
    command_id: str
    body: bytes

    @property
    def fingerprint(self) -> str:
        """Stands for type and data: a repeat under the same id must have the same."""
        return hashlib.sha256(self.body).hexdigest()[:32]


class Receipt(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The answer to a command. `duplicate` is true for a repeat, which answers the present outcome."""

    command_id: str
    type: str
    status: ReceiptStatus
    duplicate: bool | UnsetType = UNSET
    seq: int | None = None
    applies: Applies | None = None
    effect: str | None = None
    result: Any = None
    problem: Any = None
    timed_out: bool = False


def receipt(command_id: str, type_: str, status: ReceiptStatus, *, duplicate: bool = False, **fields: Any) -> Receipt:
    """A receipt whose `duplicate` member is always on the wire."""
    return Receipt(command_id=command_id, type=type_, status=status, duplicate=duplicate, **fields)


def refusal(command_id: str, type_: str, why: Problem, request_id: str | None = None) -> Receipt:
    """The receipt of a refused command: never accepted, no trace."""
    return receipt(command_id, type_, "refused", problem=why.to_wire(request_id))


def decode(type_: object, data: object, command_id: object) -> Command:
    """The command that a client sent as `type`, `data` and `command_id`, all as plain JSON values.

    Raises `ProblemError` (`bad_request`, naming the field) when it is not one.
    """
    if not isinstance(type_, str) or type_ not in COMMANDS:
        raise problem("bad_request", "No command has this type.", field="type", known=sorted(COMMANDS))
    if not isinstance(command_id, str) or not is_command_id(command_id):
        raise problem(
            "bad_request",
            "A command needs an id of its own, 1 to 128 of [A-Za-z0-9._:-]; repeat it to retry safely.",
            field="command_id",
        )
    data = {} if data is None else data
    typed = to_type(data, COMMANDS[type_].data, what=f"the data of {type_}", prefix="data.")
    if isinstance(typed, Signal) and not is_name(typed.name):
        raise problem("bad_request", "A signal or update is named like an identifier.", field="data.name")
    if isinstance(typed, AddContext) and (typed.text is None) == (typed.ref is None):
        raise problem("bad_request", "add_context takes either text or ref.", field="data.text")
    try:
        body = msgspec.json.encode([type_, data], order="deterministic")
    except (ValueError, OverflowError, RecursionError) as error:
        raise problem("bad_request", f"The data of {type_} is no JSON we take: {error}", field="data") from None
    return Command(type_, typed, command_id, body)
