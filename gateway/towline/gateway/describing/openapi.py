"""The OpenAPI document of the gateway, from the table of calls.

Promises OpenAPI 3.1, whose schemas are plain JSON Schema 2020-12. Every call may answer a problem, as `default`.
"""

import re
from importlib.metadata import version
from typing import Any, Final

from towline.gateway import answers
from towline.gateway.describing.calls import CALLS, Bytes, Either, Operation
from towline.gateway.describing.shapes import Schema, schemas_of

_PART: Final = re.compile(r"\{(\w+)\}")
_REQUEST_ID: Final = {"Towline-Request-Id": {"schema": {"type": "string"}}}


def openapi(server: str = "") -> dict[str, Any]:
    """The document. `server`: the address of the gateway, or its path on the host that the document comes from."""
    types = _types()
    made, components = schemas_of(types.values())
    schema_of = dict(zip(types, made, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for (method, path), operation in CALLS.items():
        paths.setdefault(path, {})[method.lower()] = _described(method, path, operation, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Towline",
            "version": version("towline"),
            "description": "A durable address for every long-running agent run. Live events: see /asyncapi.json.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": server or "/"}],
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}},
        },
    }


def _types() -> dict[str, Any]:
    """Every type of the table, by its own text."""
    found: dict[str, Any] = {str(answers.Problem): answers.Problem}
    for operation in CALLS.values():
        for kind in (operation.body, *(each for answer in operation.answers.values() for each in _several(answer))):
            for each in kind.kinds if isinstance(kind, Either) else (kind,):
                if each is not None and not isinstance(each, Bytes):
                    found[str(each)] = each
    return found


def _several(answer: Any) -> tuple[Any, ...]:
    return answer if isinstance(answer, tuple) else (answer,)


def _content(kinds: Any, schema_of: dict[str, Schema]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for kind in _several(kinds):
        if isinstance(kind, Bytes):
            content[kind.media_type] = {"schema": {}}
        elif isinstance(kind, Either):
            content["application/json"] = {"schema": {"anyOf": [schema_of[str(each)] for each in kind.kinds]}}
        else:
            content["application/json"] = {"schema": schema_of[str(kind)]}
    return content


def _described(method: str, path: str, operation: Operation, schema_of: dict[str, Schema]) -> dict[str, Any]:
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in _PART.findall(path)
    ]
    parameters += [
        {
            "name": each.name,
            "in": "header" if each.is_header else "query",
            "required": each.is_required,
            "schema": dict(each.schema),
        }
        for each in operation.takes
    ]
    told: dict[str, Any] = {}
    for status, answer in operation.answers.items():
        told[str(status)] = {"description": operation.summary, "headers": _REQUEST_ID}
        if answer is not None:
            told[str(status)]["content"] = _content(answer, schema_of)
    told["default"] = {
        "description": "A problem: nothing happened, unless it says so",
        "headers": _REQUEST_ID,
        "content": {"application/problem+json": {"schema": schema_of[str(answers.Problem)]}},
    }
    described: dict[str, Any] = {
        "operationId": operation_id(method, path),
        "summary": operation.summary,
        "parameters": parameters,
        "responses": told,
    }
    if operation.body is not None:
        described["requestBody"] = {
            "required": not operation.is_body_optional,
            "content": _content(operation.body, schema_of),
        }
    if operation.is_public:
        described["security"] = []
    return described


def operation_id(method: str, path: str) -> str:
    """The name of a call: its method and the words of its path."""
    words = [word.strip("{}") for word in path.removeprefix("/v1").split("/") if word]
    return "_".join([method.lower(), *(re.sub(r"\W", "_", word) for word in words)])
