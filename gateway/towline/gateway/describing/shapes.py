"""Schemas of all that travels, from the types; those of a Run and of an event are put together from several.

Promises names that stay: a schema is named like its type, an event like its type in the log. A value above its
caller's audience is null, so each member of a Run may be.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, get_args

import msgspec

from towline.gateway import answers
from towline.protocol import errors
from towline.protocol.events import EVENTS, Actor, Audience
from towline.protocol.projection import Heartbeat
from towline.protocol.run_state import Run

Schema = dict[str, Any]
PREFIX: Final = "#/components/schemas/"

_SHORT: Final = {
    "towline.gateway.answers.Run": "Run",
    "towline.gateway.answers.Problem": "Problem",
    "towline.protocol.projection.Heartbeat": "WorkerHeartbeat",
    "towline.protocol.frames.Heartbeat": "Heartbeat",
}
"""Names of types whose own name stands for two."""

_ROLES: Final = ("viewer", "collaborator", "owner", "operator", "worker")
_ALWAYS: Final = ("id", "status", "role", "actions", "redacted", "last_seq", "first_seq", "cursor")


def schemas_of(types: Iterable[Any]) -> tuple[list[Schema], dict[str, Schema]]:
    """The schema of each of `types`, and the components that they point to."""
    asked = list(types)
    told = {row.data for row in EVENTS.values()} | {Run, Heartbeat, Actor, errors.Problem}
    others = [*sorted(told, key=lambda kind: kind.__name__), answers.Run, answers.Event, answers.Problem]
    made, found = msgspec.json.schema_components([*asked, *others], ref_template=PREFIX + "{name}")
    names = {kind: _name_in(schema) for kind, schema in zip(others, made[len(asked) :], strict=True)}
    fold = found.pop(names[Run])
    found[names[answers.Run]] = _run(fold, {"$ref": PREFIX + names[Heartbeat]})
    _project_waits(found)
    _project_blockers(found)
    found.update(_events({type_: names[row.data] for type_, row in EVENTS.items()}, names[Actor]))
    found[names[answers.Event]] = _any_event()
    found[names[answers.Problem]] = _problem(found.pop(names[errors.Problem]))
    short = {name: _SHORT[name] for name in found if name in _SHORT}
    text = msgspec.json.encode([made[: len(asked)], {short.get(name, name): schema for name, schema in found.items()}])
    for long, name in short.items():
        text = text.replace(f'"{PREFIX}{long}"'.encode(), f'"{PREFIX}{name}"'.encode())
    schemas, components = msgspec.json.decode(text)
    return schemas, components


def _name_in(schema: Schema) -> str:
    return str(schema["$ref"]).removeprefix(PREFIX)


def _nullable(schema: Schema) -> Schema:
    if schema == {} or ("default" in schema and schema.get("default", 0) is None):
        return schema
    plain = {name: value for name, value in schema.items() if name != "default"}
    return {"anyOf": [plain, {"type": "null"}]}


def _run(fold: Schema, worker: Schema) -> Schema:
    """A Run as callers read it, from the fold."""
    members: dict[str, Schema] = {
        name: schema if name in _ALWAYS else _nullable(schema)
        for name, schema in fold["properties"].items()
        if name != "audiences"
    }
    members |= {
        "role": {"enum": list(_ROLES)},
        "actions": {"type": "array", "items": {"type": "object", "required": ["type"]}},
        "redacted": {"type": "array", "items": {"type": "string"}},
        "worker": {"anyOf": [worker, {"type": "null"}]},
        "first_seq": {"type": "integer"},
        "cursor": {"type": "string"},
    }
    return {
        "title": "Run",
        "description": "A Run as its caller reads it; what is above the caller is null, and named in `redacted`.",
        "type": "object",
        "properties": members,
        "required": list(members),
    }


def _project_waits(components: dict[str, Schema]) -> None:
    """Members of `waiting_on` as callers read them."""
    wait = components["Wait"]
    members = {n: s for n, s in wait["properties"].items() if n not in ("audience", "deciders", "exclude")}
    members["may_answer"] = {"type": "boolean"}
    components["Wait"] = {**wait, "properties": members, "required": list(members)}


def _project_blockers(components: dict[str, Schema]) -> None:
    """Members of `blockers` as callers read them: what is above the caller is null."""
    members = components["Blocker"]["properties"]
    members.update({name: _nullable(members[name]) for name in ("title", "by", "remedies")})


def _events(datas: Mapping[str, str], actor: str) -> dict[str, Schema]:
    audience = {"enum": list(get_args(Audience))}
    known = {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    return {
        f"event.{type_}": {
            "title": type_,
            "type": "object",
            "properties": {
                "seq": {"type": "integer", "minimum": 1},
                "ts": {"type": "string"},
                "type": {"const": type_},
                "actor": {"anyOf": [{"$ref": PREFIX + actor}, {"type": "object"}]},
                "data": {
                    "anyOf": [
                        {"$ref": PREFIX + data},
                        {"type": ["object", "null"], "description": "What the caller may read of it."},
                    ]
                },
                "ref": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "audience": audience,
                "cause": known,
                "redacted": {"type": "boolean"},
                "run": {"type": "string"},
                "private": {"description": "What its writer kept for history; only for who holds the run."},
            },
            "required": ["seq", "ts", "type", "actor", "data", "ref", "audience", "cause"],
        }
        for type_, data in datas.items()
    }


def _any_event() -> Schema:
    return {
        "title": "Event",
        "description": "One record of a run's log. A client moves its cursor over types that it does not know.",
        "oneOf": [{"$ref": f"{PREFIX}event.{type_}"} for type_ in EVENTS],
    }


def _problem(fields: Schema) -> Schema:
    members = dict(fields["properties"])
    members |= {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "code": {"enum": sorted(errors.CODES)},
        "request_id": {"type": "string"},
    }
    return {
        "title": "Problem",
        "description": "RFC 9457 problem details: what happened, and what to do.",
        "type": "object",
        "properties": members,
        "required": ["type", "title", "status", "code", "detail"],
    }
