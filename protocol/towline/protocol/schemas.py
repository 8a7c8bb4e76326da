"""Checks of values against the JSON Schema that a workflow announced for them.

Promises a `bad_request` that names the field and what belongs there. Schemas come from our own workers; nothing
is ever fetched to resolve a reference.
"""

from typing import Any

import jsonschema
from jsonschema.exceptions import best_match
from referencing import Registry

from towline.protocol.errors import problem
from towline.protocol.values import JsonObject


def check_schema(schema: JsonObject, *, field: str) -> None:
    """Raises `ProblemError` (`bad_request`) for what is no JSON Schema 2020-12."""
    try:
        jsonschema.Draft202012Validator.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise problem("bad_request", f"Not a JSON Schema: {error.message}", field=field) from None


def check(value: Any, schema: JsonObject, *, field: str) -> None:
    """Raises `ProblemError` (`bad_request`) when `value` does not fit; `field` is where it stands in the request."""
    validator = jsonschema.Draft202012Validator(schema, registry=Registry())
    error = best_match(validator.iter_errors(value))
    if error is None:
        return
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path)
    if error.validator == "required" and isinstance(error.instance, dict):
        missing = [name for name in error.validator_value if name not in error.instance]
        raise problem(
            "bad_request",
            f"{field}{path} lacks {', '.join(missing)}.",
            field=f"{field}{path}.{missing[0]}",
            expected="a value",
        )
    expected = {"type": "a value of type ", "enum": "one of ", "const": ""}.get(str(error.validator))
    raise problem(
        "bad_request",
        f"{field}{path} does not fit: {error.message}",
        field=field + path,
        expected=f"{expected}{error.validator_value}" if expected is not None else None,
    )
