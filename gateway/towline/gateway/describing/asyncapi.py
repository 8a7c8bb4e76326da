"""The AsyncAPI document of `/v1/socket`, from the frames.

Promises AsyncAPI 3.0 from the point of view of the gateway: it receives what clients send. Which frame follows on
which stands in the description of each.
"""

from importlib.metadata import version
from typing import Any, Final, get_args
from urllib.parse import urlsplit

from towline.gateway import answers
from towline.gateway.describing.shapes import PREFIX, Schema, schemas_of
from towline.protocol import closecodes, frames

_CHANNEL: Final = {"$ref": "#/channels/socket"}


def asyncapi(server: str = "") -> dict[str, Any]:
    """The document. `server`: the address of the gateway; a path alone is no server here, since that needs a host."""
    sent, received = get_args(frames.ServerFrame), get_args(frames.ClientFrame)
    kinds = [*sent, *received]
    made, components = schemas_of([*kinds, answers.Run])
    _fill(components, str(made[-1]["$ref"]))
    messages = {
        _op(kind): {
            "name": _op(kind),
            "title": _op(kind),
            "summary": (kind.__doc__ or "").partition("\n")[0],
            "contentType": "application/json",
            "payload": schema,
        }
        for kind, schema in zip(kinds, made, strict=False)
    }
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Towline",
            "version": version("towline"),
            "description": f"Runs as they happen. Subprotocol {frames.SUBPROTOCOL}; one JSON object a text frame.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        **_servers(server),
        "channels": {
            "socket": {
                "address": "/v1/socket",
                "description": "Close codes: "
                + ", ".join(f"{code.value} {code.name.lower()}" for code in closecodes.CloseCode),
                "messages": {op: {"$ref": f"#/components/messages/{op}"} for op in messages},
                "bindings": {"ws": {"method": "GET"}},
            }
        },
        "operations": {
            "receive": _operation("receive", "What a client sends", [_op(kind) for kind in received]),
            "send": _operation("send", "What the gateway sends", [_op(kind) for kind in sent]),
        },
        "components": {"messages": messages, "schemas": components},
    }


def _servers(server: str) -> dict[str, Any]:
    address = urlsplit(server)
    if not address.netloc:
        return {}
    protocol = "wss" if address.scheme == "https" else "ws"
    pathname = {"pathname": address.path} if address.path else {}
    return {"servers": {"gateway": {"host": address.netloc, "protocol": protocol, **pathname}}}


def _op(kind: Any) -> str:
    return str(kind.__struct_config__.tag)


def _operation(action: str, summary: str, ops: list[str]) -> dict[str, Any]:
    messages = [{"$ref": f"#/channels/socket/messages/{op}"} for op in ops]
    return {"action": action, "channel": _CHANNEL, "summary": summary, "messages": messages}


def _fill(components: dict[str, Schema], run: str) -> None:
    """What frames carry without decoding it: events as they stand in the log, Runs, problems."""
    _member(components, frames.Events, "events")["items"] = {"$ref": PREFIX + "Event"}
    _replace(components, frames.Subscribed, "projection", {"$ref": run})
    _replace(components, frames.ProblemFrame, "problem", {"$ref": PREFIX + "Problem"})


def _member(components: dict[str, Schema], kind: type[Any], member: str) -> Schema:
    found: Schema = components[_component(components, kind)]["properties"][member]
    return found


def _replace(components: dict[str, Schema], kind: type[Any], member: str, schema: Schema) -> None:
    components[_component(components, kind)]["properties"][member] = schema


def _component(components: dict[str, Schema], kind: type[Any]) -> str:
    """The component that describes a frame: the one whose `op` is its tag."""
    for name, schema in components.items():
        if schema.get("properties", {}).get("op", {}).get("enum") == [_op(kind)]:
            return name
    raise LookupError(kind)
