"""Bytes that a run made or was given, as an answer: safe headers, ranges, and pieces instead of the whole in memory.

Promises that no browser runs them: they are an attachment unless of a few harmless types (and begin as such), never
sniffed, in a sandbox. The ETag is their hash. A name is only ever a header value, encoded. Leaves who may read them
to callers.
"""

import re
import secrets
from collections.abc import AsyncIterator, Mapping
from typing import Final
from urllib.parse import quote

from starlette.responses import Response, StreamingResponse

from towline.gateway import problems, ranges
from towline.gateway.http import Call
from towline.protocol.errors import Problem, problem
from towline.protocol.store.payloads import MissingPayload, RunPayloads

_INLINE: Final[Mapping[str, re.Pattern[bytes]]] = {
    "image/png": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "image/jpeg": re.compile(rb"\xff\xd8\xff"),
    "image/gif": re.compile(rb"GIF8[79]a"),
    "image/webp": re.compile(rb"RIFF.{4}WEBP", re.DOTALL),
    "text/plain": re.compile(rb""),
    "application/json": re.compile(rb""),
}
"""What may be shown in place, and how its bytes begin."""

_HEAD_BYTES: Final = 16
_MEDIA_TYPE: Final = re.compile(
    r"[a-zA-Z0-9!#$&^_.+-]{1,64}/[a-zA-Z0-9!#$&^_.+-]{1,64}(; ?charset=[a-zA-Z0-9-]{1,32})?\Z"
)
_NAME_CHARS: Final = 255
OCTETS: Final = "application/octet-stream"

SAFE_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "sandbox; default-src 'none'",
    "Cross-Origin-Resource-Policy": "same-site",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "private, no-cache",
    "Accept-Ranges": "bytes",
}


def safe_media_type(said: str) -> str:
    """What was said, if it can stand in a header, else `application/octet-stream`."""
    return said if _MEDIA_TYPE.match(said) else OCTETS


async def send_bytes(call: Call, sha256: str, media_type: str, name: str) -> Response:
    """The payload of the run with this hash, or the ranges of it that were asked for. Raises `not_found`."""
    payloads, asked = call.services.payloads.of(call.path("run")), call.request.headers
    try:
        size = await payloads.size(sha256)
    except MissingPayload:
        raise problem("not_found", "The bytes are not there any more.") from None
    tag = f'"{sha256}"'
    media_type = safe_media_type(media_type)
    looks = _INLINE.get(media_type.partition(";")[0].lower())
    kind = "inline" if looks is not None and looks.match(await _head(payloads, sha256, size)) else "attachment"
    shown = name.encode("utf-8", "replace").decode()[:_NAME_CHARS]
    headers = {**SAFE_HEADERS, "ETag": tag, "Content-Disposition": f"{kind}; filename*=utf-8''{quote(shown, safe='')}"}
    if _knows(asked.get("if-none-match"), tag):
        return Response(status_code=304, headers=headers)
    # Another version than the one that `If-Range` names cannot be continued: it is sent whole.
    header = asked.get("range") if asked.get("if-range", tag).strip() == tag else None
    try:
        pieces = ranges.wanted(header, size)
    except ranges.Unsatisfiable as error:
        refusal = Problem("bad_request", f"The range is refused: {error}.", field="Range", limit=size)
        answer = problems.answer(refusal, call.request_id, status=416)
        answer.headers["Content-Range"] = f"bytes */{size}"
        return answer
    match pieces:
        case None:
            headers["Content-Length"] = str(size)
            return StreamingResponse(payloads.stream(sha256, 0, size), 200, headers, media_type)
        case [(first, last)]:
            headers |= {"Content-Length": str(last - first + 1), "Content-Range": f"bytes {first}-{last}/{size}"}
            return StreamingResponse(payloads.stream(sha256, first, last - first + 1), 206, headers, media_type)
        case _:
            return _several(payloads, sha256, size, pieces, media_type, headers)


async def _head(payloads: RunPayloads, sha256: str, size: int) -> bytes:
    return b"".join([piece async for piece in payloads.stream(sha256, 0, min(size, _HEAD_BYTES))])


def _several(
    payloads: RunPayloads,
    sha256: str,
    size: int,
    pieces: list[tuple[int, int]],
    media_type: str,
    headers: dict[str, str],
) -> Response:
    boundary = secrets.token_hex(16)
    heads = [
        f"--{boundary}\r\nContent-Type: {media_type}\r\nContent-Range: bytes {first}-{last}/{size}\r\n\r\n".encode()
        for first, last in pieces
    ]
    end = f"--{boundary}--\r\n".encode()

    async def parts() -> AsyncIterator[bytes]:
        for head, (first, last) in zip(heads, pieces, strict=True):
            yield head
            async for piece in payloads.stream(sha256, first, last - first + 1):
                yield piece
            yield b"\r\n"
        yield end

    length = sum(len(head) + last - first + 3 for head, (first, last) in zip(heads, pieces, strict=True)) + len(end)
    headers["Content-Length"] = str(length)
    return StreamingResponse(parts(), 206, headers, f"multipart/byteranges; boundary={boundary}")


def _knows(header: str | None, tag: str) -> bool:
    """Whether `If-None-Match` names the tag, weakly or not."""
    if header is None:
        return False
    return any(part.strip().removeprefix("W/") in (tag, "*") for part in header.split(",", 64)[:64])
