"""`POST /v1/uploads`: bytes for a run that does not exist yet, and the end of those that nobody took.

Promises that an upload is streamed (never held in memory), bounded in size and time while it comes, compared with
`Content-Digest` when that is sent, and that one which breaks off, lies or is refused leaves nothing. An archive is
bytes here; unpacking is a workflow's. Leaves what a run does with an upload to `store.given`.
"""

import asyncio
import base64
import binascii
import logging
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from itertools import count as count_up
from typing import Final

from starlette.requests import ClientDisconnect
from starlette.responses import Response

from towline.gateway import access
from towline.gateway.http import Call, json_answer, route
from towline.gateway.sending import OCTETS, safe_media_type
from towline.gateway.services import Services
from towline.protocol import times
from towline.protocol.errors import problem
from towline.protocol.ids import random_id
from towline.protocol.limits import UPLOAD_BYTES, UPLOAD_MS
from towline.protocol.store.api import StoreError
from towline.protocol.store.payloads import BadPayload, PayloadTooLarge
from towline.protocol.store.purging import collect_late, finish_purges
from towline.protocol.store.uploads import Upload

_log: Final = logging.getLogger("towline.gateway")

_CHUNK_S: Final = 30.0
_WHOLE_S: Final = 1800.0
SWEEP_S: Final = 600.0
_COLLECT_EVERY: Final = 144
"""Once a day all folders of payloads are looked at."""

_DIGEST: Final = re.compile(r"[ \t]*([a-z*][a-z0-9_.*-]*)=:([A-Za-z0-9+/]*={0,2}):[ \t]*\Z", re.ASCII)


def said_sha256(header: str | None) -> str | None:
    """The SHA-256 in hex that a `Content-Digest` header says, or None without one.

    Raises `bad_request` for a header that says none: a check that cannot be made must not seem to have been made.
    """
    if header is None:
        return None
    found = None
    for part in header.split(",", 8):
        match = _DIGEST.match(part)
        if match is None:
            raise _bad_digest("is not written as the standard says")
        if match[1] == "sha-256":
            with suppress(binascii.Error):
                found = base64.b64decode(match[2], validate=True)
            if found is None or len(found) != 32:
                raise _bad_digest("holds no SHA-256")
    if found is None:
        raise _bad_digest("names no sha-256")
    return found.hex()


def _bad_digest(why: str) -> Exception:
    return problem(
        "bad_request", f"Content-Digest {why}.", field="Content-Digest", expected="sha-256=:<base64 of the hash>:"
    )


async def create(call: Call) -> Response:
    """`POST /v1/uploads`."""
    if not call.credential.allows("command"):
        access.require(call.credential, "start")
    headers = call.request.headers
    media_type = safe_media_type(headers.get("content-type", OCTETS))
    if media_type.startswith("multipart/") or headers.get("content-type", "").lower().startswith("multipart/"):
        raise problem("unsupported_media", "Send the bytes themselves as the body, not a form.")
    length = headers.get("content-length", "0")
    if length.isascii() and length.isdigit() and int(length[:18]) > UPLOAD_BYTES:
        raise _too_large()
    sha256 = said_sha256(headers.get("content-digest"))
    payloads, store = call.services.payloads, call.services.store
    ref = random_id("upl")
    try:
        async with asyncio.timeout(_WHOLE_S):
            stored = await payloads.put_upload(ref, chunks(call), limit_bytes=UPLOAD_BYTES, sha256=sha256)
    except PayloadTooLarge:
        raise _too_large() from None
    except BadPayload:
        raise problem(
            "bad_request",
            "The bytes have another hash than Content-Digest says; send them again.",
            field="Content-Digest",
        ) from None
    except TimeoutError:
        raise problem("bad_request", "The bytes came too slowly.") from None
    except ClientDisconnect:
        raise problem("bad_request", "The bytes ended too early.") from None
    upload = Upload(call.credential.subject, stored.sha256, stored.size, media_type, store.now_ms() + UPLOAD_MS)
    try:
        await store.keep_upload(ref, upload)
    except StoreError:
        await payloads.remove_upload(ref)
        raise
    return json_answer(
        {
            "ref": ref,
            "size": stored.size,
            "sha256": stored.sha256,
            "media_type": media_type,
            "expires_at": times.to_wire(upload.expires_ms),
        },
        201,
    )


async def chunks(call: Call) -> AsyncIterator[bytes]:
    """The body as it comes. Raises `TimeoutError` when it stands still, `ClientDisconnect` when it breaks off."""
    body = call.request.stream()
    while True:
        try:
            chunk = await asyncio.wait_for(anext(body), _CHUNK_S)
        except StopAsyncIteration:
            return
        yield chunk


def _too_large() -> Exception:
    return problem("too_large", "An upload has at most 100 MiB.", limit=UPLOAD_BYTES)


async def sweep_forever(services: Services) -> None:
    """Removes, again and again, the bytes of uploads that have ended, and what is left of deleted runs."""
    for passed in count_up():
        try:
            if count := await finish_purges(services.store, services.payloads):
                _log.info("%d deleted runs had bytes left", count)
            if count := await services.payloads.sweep(UPLOAD_MS / 1000):
                _log.info("%d uploads ended without a run", count)
            if passed % _COLLECT_EVERY == 0 and (count := await collect_late(services.store, services.payloads)):
                _log.info("%d deleted runs were given bytes afterwards", count)
        except (StoreError, OSError) as error:
            _log.warning("payloads are not swept now: %s", type(error).__name__)
        await asyncio.sleep(SWEEP_S)


ROUTES: Final = (route("/v1/uploads", create, "POST"),)
