"""Uploads: streamed, checked, their uploader's alone, and a run's once it was started with them."""

import asyncio
import base64
import hashlib
import os
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from msgspec.structs import replace

from tests.support.gateway import RunningGateway
from tests.support.waiting import wait_until
from towline.protocol.cursor import START
from towline.protocol.ids import random_id
from towline.protocol.limits import UPLOAD_BYTES, UPLOAD_MS
from towline.protocol.store.given import upload_field
from towline.protocol.store.payload_objects import Objects
from towline.protocol.store.payloads import MissingPayload, Payloads
from towline.protocol.store.uploads import Upload
from towline.protocol.times import from_wire

pytestmark = pytest.mark.store


def digest(data: bytes) -> str:
    return f"sha-256=:{base64.b64encode(hashlib.sha256(data).digest()).decode()}:"


async def send(gateway: RunningGateway, data: bytes, **headers: str) -> dict[str, Any]:
    answer = await gateway.http.post(
        "/v1/uploads", content=data, headers={"Content-Type": "application/zip", **headers}
    )
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


UPLOAD = Upload("ana", "0" * 64, 1, "text/plain", 0)


async def _is_gone(gateway: RunningGateway, ref: str) -> bool:
    return await gateway.store.upload(ref) is None


def left(folder: Path) -> list[str]:
    """What lies among the payloads."""
    return sorted(path.name for path in (folder / "payloads").rglob("*") if path.is_file())


async def test_an_upload_becomes_the_runs_that_names_it(gateway: RunningGateway, tmp_path: Path) -> None:
    data = os.urandom(300_000)
    upload = await send(gateway, data, **{"Content-Digest": digest(data)})
    ref, sha256 = upload["ref"], hashlib.sha256(data).hexdigest()
    assert upload == {
        "ref": ref,
        "size": len(data),
        "sha256": sha256,
        "media_type": "application/zip",
        "expires_at": upload["expires_at"],
    }
    assert abs(from_wire(upload["expires_at"]) - gateway.store.now_ms() - UPLOAD_MS) < 60_000
    assert left(tmp_path) == [ref]

    run = await gateway.start(input={"source": {"upload": ref}})
    assert left(tmp_path) == [sha256]
    answer = await gateway.http.get(f"/v1/runs/{run}/payloads/{ref}")
    assert answer.content == data
    assert answer.headers["content-type"] == "application/zip"
    assert answer.headers["content-disposition"].startswith("attachment")
    stranger = await gateway.http.get(f"/v1/runs/{run}/payloads/{ref}", headers=gateway.as_("bob"))
    assert stranger.json()["code"] == "not_found"
    other = await gateway.start()
    assert (await gateway.http.get(f"/v1/runs/{other}/payloads/{ref}")).json()["code"] == "not_found"

    again = await gateway.http.post("/v1/runs", json={"workflow": "toy", "input": {"source": {"upload": ref}}})
    assert (again.status_code, again.json()["code"], again.json()["field"]) == (404, "not_found", "input")


async def test_a_start_is_repeated_with_its_upload_even_after_that_ended(gateway: RunningGateway) -> None:
    await gateway.announce()
    ref = (await send(gateway, b"x"))["ref"]
    body = {"workflow": "toy", "input": {"source": {"upload": ref}}}
    headers = {"Idempotency-Key": "k1"}
    answers = [await gateway.http.post("/v1/runs", json=body, headers=headers) for _ in range(2)]
    await gateway.store.keep_upload(ref, replace(UPLOAD, expires_ms=0))
    await wait_until(lambda: _is_gone(gateway, ref), what="the upload to end")
    answers.append(await gateway.http.post("/v1/runs", json=body, headers=headers))
    assert [a.status_code for a in answers] == [201, 200, 200]
    assert len({a.json()["id"] for a in answers}) == 1


async def test_only_its_uploader_can_use_it(gateway: RunningGateway) -> None:
    await gateway.announce()
    ref = (await send(gateway, b"mine"))["ref"]
    body = {"workflow": "toy", "input": {"source": {"upload": ref}}}
    answers = [
        await gateway.http.post("/v1/runs", json=body, headers=gateway.as_("bob")),
        await gateway.http.post("/v1/runs", json=body, headers=gateway.as_("op", roles=("operator",))),
        *[
            await gateway.http.post("/v1/runs", json={"workflow": "toy", "input": {"source": {"upload": made}}})
            for made in (random_id("upl"), "upl_9", "upl_../../etc/passwd")
        ],
    ]
    assert {a.status_code for a in answers} == {404}
    assert len({a.json()["detail"] for a in answers}) == 1  # foreign and missing look the same
    assert (await gateway.http.post("/v1/runs", json=body)).status_code == 201


async def test_a_refused_start_leaves_the_upload(gateway: RunningGateway) -> None:
    await gateway.announce()
    ref = (await send(gateway, b"mine"))["ref"]
    refused = await gateway.http.post(
        "/v1/runs", json={"workflow": "toy", "input": {"source": {"upload": ref, "path": 5}}}
    )
    assert refused.status_code == 400
    assert await gateway.start(input={"source": {"upload": ref}})


async def test_an_upload_that_nobody_took_ends(gateway: RunningGateway, tmp_path: Path) -> None:
    ref = (await send(gateway, b"mine"))["ref"]
    upload = await gateway.store.upload(ref)
    assert upload is not None
    assert 0 < upload.expires_ms - gateway.store.now_ms() <= UPLOAD_MS
    assert await gateway.services.payloads.sweep(UPLOAD_MS / 1000) == 0
    assert await gateway.services.payloads.sweep(-60) == 1
    assert left(tmp_path) == []
    answer = await gateway.http.post("/v1/runs", json={"workflow": "toy", "input": {"upload": ref}})
    assert answer.status_code in (400, 404)


async def test_who_may_read_what_the_run_was_given(gateway: RunningGateway) -> None:
    upload = (await send(gateway, b"given"))["ref"]
    value = {"source": {"upload": upload}, "text": "x" * 100_000}
    run = await gateway.start(input=value, grants={"user:bob": "viewer", "user:eve": "collaborator"})
    input_ref = (await gateway.http.get(f"/v1/runs/{run}")).json()["input_ref"]
    for ref in (upload, input_ref):
        answers = {
            who: (await gateway.http.get(f"/v1/runs/{run}/payloads/{ref}", headers=gateway.as_(who))).status_code
            for who in ("ana", "eve", "bob", "mallory")
        }
        assert answers == {"ana": 200, "eve": 200, "bob": 404, "mallory": 404}
    shown = (await gateway.http.get(f"/v1/runs/{run}", headers=gateway.as_("bob"))).json()
    assert shown["input_ref"] is None
    assert "input_ref" in shown["redacted"]


async def test_an_object_store_serves_as_the_folder_does(gateway: RunningGateway, tmp_path: Path) -> None:
    gateway.services.payloads = Payloads(Objects.at("memory:///"))
    data = os.urandom(700_000)
    ref = (await send(gateway, data))["ref"]
    run = await gateway.start(input={"upload": ref})
    path = f"/v1/runs/{run}/payloads/{ref}"
    assert (await gateway.http.get(path)).content == data
    part = await gateway.http.get(path, headers={"Range": "bytes=300000-699998"})
    assert (part.status_code, part.content) == (206, data[300_000:699_999])
    assert left(tmp_path) == []


async def test_a_form_of_many_fields_is_refused_at_once(gateway: RunningGateway) -> None:
    fields = "&".join(f"f{n}=x" for n in range(100_000)).encode()
    for path in ("/v1/runs", "/v1/uploads"):
        answer = await gateway.http.post(
            path, content=fields, headers={"Content-Type": "application/x-www-form-urlencoded"}
        )
        assert answer.status_code in (201, 413, 415)  # to an upload they are bytes
        assert (answer.status_code == 201) == (path == "/v1/uploads")


@pytest.mark.parametrize(
    ("header", "field"),
    [
        (digest(b"other"), "Content-Digest"),
        ("sha-256=:AAAA:", "Content-Digest"),
        ("sha-256=nonsense", "Content-Digest"),
        ("sha-512=:AAAA:", "Content-Digest"),
        ("", "Content-Digest"),
        ("sha-256=:!!!!:", "Content-Digest"),
    ],
)
async def test_a_digest_that_is_not_the_bytes_leaves_nothing(
    gateway: RunningGateway, tmp_path: Path, header: str, field: str
) -> None:
    answer = await gateway.http.post("/v1/uploads", content=b"bytes", headers={"Content-Digest": header})
    assert (answer.status_code, answer.json()["field"]) == (400, field)
    assert left(tmp_path) == []


async def test_other_digests_beside_the_right_one_are_passed_over(gateway: RunningGateway) -> None:
    await send(gateway, b"x", **{"Content-Digest": f"sha-512=:AAAA:, {digest(b'x')}"})


async def test_what_may_not_be_sent(gateway: RunningGateway, tmp_path: Path) -> None:
    form = await gateway.http.post("/v1/uploads", files={"file": b"x"})
    assert form.json()["code"] == "unsupported_media"
    reader = await gateway.http.post("/v1/uploads", content=b"x", headers=gateway.as_("ana", verbs=["read"]))
    assert reader.json()["code"] == "forbidden"
    nobody = await gateway.http.post("/v1/uploads", content=b"x", headers={"Authorization": "Bearer x"})
    assert nobody.json()["code"] == "unauthenticated"
    assert left(tmp_path) == []
    odd = await send(gateway, b"x", **{"Content-Type": "te\txt/html; x"})
    assert odd["media_type"] == "application/octet-stream"


async def raw(gateway: RunningGateway) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(gateway.url)
    return await asyncio.open_connection(parts.hostname, parts.port)


def head(gateway: RunningGateway, *lines: str) -> bytes:
    token = gateway.http.headers["Authorization"]
    return "\r\n".join(["POST /v1/uploads HTTP/1.1", "Host: x", f"Authorization: {token}", *lines, "", ""]).encode()


async def test_a_length_over_the_limit_is_refused_before_a_byte_is_read(
    gateway: RunningGateway, tmp_path: Path
) -> None:
    reader, writer = await raw(gateway)
    writer.write(head(gateway, f"Content-Length: {UPLOAD_BYTES + 1}"))
    assert b" 413 " in await reader.readline()
    writer.close()
    assert left(tmp_path) == []


async def test_a_body_that_ends_before_its_length_leaves_nothing(gateway: RunningGateway, tmp_path: Path) -> None:
    _, writer = await raw(gateway)
    size = 3_000_000
    writer.write(head(gateway, f"Content-Length: {size}") + bytes(size * 99 // 100))
    await writer.drain()
    await wait_until(lambda: left(tmp_path) != [], what="the upload to begin")
    writer.close()
    await wait_until(lambda: left(tmp_path) == [], what="the upload to be given up")


async def test_an_endless_body_is_cut_off(
    gateway: RunningGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("towline.gateway.uploads.UPLOAD_BYTES", 2_000_000)

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield bytes(65_536)

    reader, writer = await raw(gateway)
    writer.write(head(gateway, "Transfer-Encoding: chunked"))

    async def pour() -> None:
        async for chunk in endless():
            writer.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
            await writer.drain()

    pouring = asyncio.create_task(pour())
    async with asyncio.timeout(20):
        assert b" 413 " in await reader.readline()
    pouring.cancel()
    await asyncio.wait([pouring])
    writer.close()
    assert left(tmp_path) == []


async def test_a_body_that_stalls_is_given_up(
    gateway: RunningGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("towline.gateway.uploads._CHUNK_S", 0.05)
    reader, writer = await raw(gateway)
    writer.write(head(gateway, "Content-Length: 100") + b"half")
    async with asyncio.timeout(20):
        assert b" 400 " in await reader.readline()
    writer.close()
    assert left(tmp_path) == []


async def test_a_large_input_goes_around_the_log(gateway: RunningGateway) -> None:
    value = {"text": secrets.token_hex(100_000)}
    run = await gateway.start(input=value)
    shown = (await gateway.http.get(f"/v1/runs/{run}")).json()
    assert shown["input_ref"].startswith("pay_")
    answer = await gateway.http.get(f"/v1/runs/{run}/payloads/{shown['input_ref']}")
    assert answer.json() == value
    stranger = await gateway.http.get(f"/v1/runs/{run}/payloads/{shown['input_ref']}", headers=gateway.as_("bob"))
    assert stranger.json()["code"] == "not_found"
    page = await gateway.store.read_log(run, START, limit=1, private=True)
    assert page.entries[0].private is not None
    assert len(page.entries[0].private) < 200
    small = await gateway.start(input={"text": "x"})
    assert (await gateway.http.get(f"/v1/runs/{small}")).json()["input_ref"] is None


async def test_what_a_run_was_given_stands_beside_its_log(gateway: RunningGateway) -> None:
    first, second = await send(gateway, b"a"), await send(gateway, b"b")
    run = await gateway.start(input={"list": [{"upload": first["ref"]}, f"{second['ref']}"], "text": "upl_ no ref"})
    for upload in (first, second):
        assert await gateway.store.side_fields(run, [upload_field(upload["ref"])])
        with pytest.raises(MissingPayload):
            await gateway.services.payloads.of(run).adopt_upload(upload["ref"], "1" * 64)
