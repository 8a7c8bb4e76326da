"""`/openapi.json` and `/asyncapi.json`: no credential is needed to read how one would call."""

import hashlib
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from towline.gateway.describing.asyncapi import asyncapi
from towline.gateway.describing.openapi import openapi
from towline.gateway.http import public, services_of
from towline.gateway.mounting import root_of

_Make = Callable[[str], dict[str, Any]]


@lru_cache(maxsize=8)
def _document(make: _Make, server: str) -> tuple[bytes, str]:
    body = msgspec.json.encode(make(server))
    return body, f'"{hashlib.sha256(body).hexdigest()[:32]}"'


def _answer(request: Request, make: _Make) -> Response:
    body, tag = _document(make, services_of(request).settings.public_url or root_of(request))
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(body, 200, headers, "application/json")


async def calls(request: Request) -> Response:
    """`GET /openapi.json`."""
    return _answer(request, openapi)


async def frames(request: Request) -> Response:
    """`GET /asyncapi.json`."""
    return _answer(request, asyncapi)


ROUTES: Final = (public("/openapi.json", calls), public("/asyncapi.json", frames))
