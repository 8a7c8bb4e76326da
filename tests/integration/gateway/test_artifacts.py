"""Artifacts and payloads: listed as announced, sent as bytes that no browser runs."""

import email
from typing import Any

import pytest

from tests.support.gateway import AGENT, Hand, RunningGateway
from towline.protocol import event_data as d
from towline.protocol.codec import NewEntry

pytestmark = pytest.mark.store


async def publish(
    gateway: RunningGateway, hand: Hand, content: bytes, *, name: str, media_type: str, number: int = 1, **more: Any
) -> str:
    sha256 = await gateway.services.payloads.of(hand.run).put(content)
    data = d.ArtifactCreated(
        artifact=f"art_{number}", name=name, media_type=media_type, size=len(content), sha256=sha256
    )
    await hand.write(NewEntry("artifact.created", AGENT, data, **more))
    return sha256


async def test_artifacts_are_listed_and_sent(gateway: RunningGateway) -> None:
    run = await gateway.start()
    hand = await gateway.hold(run)
    sha256 = await publish(gateway, hand, b"# Report\n", name="report.md", media_type="text/markdown")
    await publish(gateway, hand, b"{}", name="f.json", media_type="application/json", number=2)
    items = (await gateway.http.get(f"/v1/runs/{run}/artifacts")).json()["items"]
    assert [item["id"] for item in items] == ["art_1", "art_2"]
    assert {k: items[0][k] for k in ("name", "media_type", "size", "sha256", "seq", "audience")} == {
        "name": "report.md",
        "media_type": "text/markdown",
        "size": 9,
        "sha256": sha256,
        "seq": 3,
        "audience": "collaborator",
    }
    answer = await gateway.http.get(f"/v1/runs/{run}/artifacts/art_1")
    assert answer.content == b"# Report\n"
    assert answer.headers["etag"] == f'"{sha256}"'
    assert answer.headers["content-disposition"].startswith("attachment")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-security-policy"] == "sandbox; default-src 'none'"
    same = await gateway.http.get(f"/v1/runs/{run}/artifacts/art_1", headers={"If-None-Match": f'"{sha256}"'})
    assert (same.status_code, same.content) == (304, b"")
    inline = await gateway.http.get(f"/v1/runs/{run}/artifacts/art_2")
    assert inline.headers["content-disposition"].startswith("inline")
    assert (await gateway.http.get(f"/v1/runs/{run}/artifacts/art_3")).json()["code"] == "not_found"


@pytest.mark.parametrize(
    ("asked", "status", "content", "where"),
    [
        ("bytes=0-3", 206, b"0123", "bytes 0-3/10"),
        ("bytes=4-", 206, b"456789", "bytes 4-9/10"),
        ("bytes=-3", 206, b"789", "bytes 7-9/10"),
        ("bytes=8-100", 206, b"89", "bytes 8-9/10"),
        ("bytes=-100", 206, b"0123456789", "bytes 0-9/10"),
        ("bytes=10-", 416, None, "bytes */10"),
        ("bytes=-0", 416, None, "bytes */10"),
        ("bytes=5-2", 200, b"0123456789", None),
        ("bytes=x", 200, b"0123456789", None),
        ("bytes=", 200, b"0123456789", None),
        ("lines=1-2", 200, b"0123456789", None),
        ("bytes=0-4,3-6", 200, b"0123456789", None),
        ("bytes=0-1,20-", 206, b"01", "bytes 0-1/10"),
        ("bytes=20-,30-40", 416, None, "bytes */10"),
        ("bytes=" + ",".join(f"{n}-{n}" for n in range(9000)), 416, None, "bytes */10"),
        ("bytes=" + "0-," * 10_000, 416, None, "bytes */10"),
    ],
)
async def test_a_range(
    gateway: RunningGateway, asked: str, status: int, content: bytes | None, where: str | None
) -> None:
    run = await gateway.start()
    await publish(gateway, await gateway.hold(run), b"0123456789", name="x", media_type="text/plain")
    answer = await gateway.http.get(f"/v1/runs/{run}/artifacts/art_1", headers={"Range": asked})
    assert answer.status_code == status
    assert answer.headers.get("content-range") == where
    if content is None:
        assert answer.json()["field"] == "Range"
    else:
        assert answer.content == content


async def test_artifacts_are_listed_in_pages(gateway: RunningGateway) -> None:
    run = await gateway.start()
    hand = await gateway.hold(run)
    for number in range(5):
        await publish(gateway, hand, b"x", name=f"{number}.txt", media_type="text/plain", number=number)
        await hand.note(count=3)
    path, names, page = f"/v1/runs/{run}/artifacts?limit=2", list[str](), ""
    while True:
        answer = (await gateway.http.get(path + page)).json()
        assert 0 < len(answer["items"]) <= 2
        names += [item["name"] for item in answer["items"]]
        if answer["next_page"] is None:
            break
        page = f"&page={answer['next_page']}"
    assert names == [f"{number}.txt" for number in range(5)]
    for wrong, field in (("limit=0", "limit"), ("limit=201", "limit"), ("page=x", "page"), ("page=", "page")):
        assert (await gateway.http.get(f"/v1/runs/{run}/artifacts?{wrong}")).json()["field"] == field


async def test_a_large_result_is_read_by_who_reads_the_result(gateway: RunningGateway) -> None:
    run = await gateway.start(grants={"user:bob": "viewer", "user:eve": "collaborator"})
    hand = await gateway.hold(run)
    ref = "pay_" + await gateway.services.payloads.of(run).put(b'"large"')
    data = d.RunCompleted(summary="done", claims=[], verified=None, result=None)
    hand.seen = (await gateway.store.facts(run)).head
    await gateway.store.close(hand.commit(NewEntry("run.completed", AGENT, data, ref=ref)))
    for who, status in (("ana", 200), ("eve", 200), ("bob", 404), ("mallory", 404)):
        answer = await gateway.http.get(f"/v1/runs/{run}/payloads/{ref}", headers=gateway.as_(who))
        assert (who, answer.status_code) == (who, status)


async def test_several_ranges_come_as_parts(gateway: RunningGateway) -> None:
    run = await gateway.start()
    await publish(gateway, await gateway.hold(run), b"0123456789", name="x", media_type="text/plain")
    path = f"/v1/runs/{run}/artifacts/art_1"
    answer = await gateway.http.get(path, headers={"Range": "bytes=-2, 0-1,4-5"})
    assert answer.status_code == 206
    assert int(answer.headers["content-length"]) == len(answer.content)
    said = email.message_from_bytes(f"Content-Type: {answer.headers['content-type']}\r\n\r\n".encode() + answer.content)
    assert said.get_content_type() == "multipart/byteranges"
    parts = [part for part in said.walk() if not part.is_multipart()]
    assert [part.get_payload() for part in parts] == ["89", "01", "45"]
    assert [part["Content-Range"] for part in parts] == ["bytes 8-9/10", "bytes 0-1/10", "bytes 4-5/10"]
    assert {part.get_content_type() for part in parts} == {"text/plain"}


async def test_a_range_of_another_version_is_sent_whole(gateway: RunningGateway) -> None:
    run = await gateway.start()
    sha256 = await publish(gateway, await gateway.hold(run), b"0123456789", name="x", media_type="text/plain")
    path = f"/v1/runs/{run}/artifacts/art_1"
    for said, status in ((f'"{sha256}"', 206), ('"other"', 200), ("Wed, 21 Oct 2015 07:28:00 GMT", 200)):
        answer = await gateway.http.get(path, headers={"Range": "bytes=0-3", "If-Range": said})
        assert answer.status_code == status
    for known in (f'"x", W/"{sha256}"', "*", f'"{sha256}"'):
        assert (await gateway.http.get(path, headers={"If-None-Match": known})).status_code == 304
    head = await gateway.http.head(path)
    assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", "10")


@pytest.mark.parametrize(
    ("media_type", "content", "kind"),
    [
        ("image/gif", b"GIF89a....", "inline"),
        ("image/png", b"\x89PNG\r\n\x1a\n", "inline"),
        ("image/webp", b"RIFF0000WEBP", "inline"),
        ("image/jpeg", b"\xff\xd8\xff\xe0", "inline"),
        ("image/gif", b"<script>alert(1)</script>", "attachment"),
        ("image/png", b"GIF89a", "attachment"),
        ("image/jpeg", b"", "attachment"),
        ("image/svg+xml", b"<svg><script/></svg>", "attachment"),
        ("application/pdf", b"%PDF-1.7", "attachment"),
        ("text/html", b"<b>", "attachment"),
        ("text/javascript", b"GIF89a=1", "attachment"),
    ],
)
async def test_only_harmless_content_is_shown_in_place(
    gateway: RunningGateway, media_type: str, content: bytes, kind: str
) -> None:
    run = await gateway.start()
    await publish(gateway, await gateway.hold(run), content, name="x", media_type=media_type)
    answer = await gateway.http.get(f"/v1/runs/{run}/artifacts/art_1")
    assert answer.content == content
    assert answer.headers["content-disposition"].startswith(kind)
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cross-origin-resource-policy"] == "same-site"
    assert answer.headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize(
    ("name", "media_type"),
    [
        ("a\r\nSet-Cookie: x=1", "text/html"),
        ('"; filename=evil.exe', "image/svg+xml"),
        ("../../etc/passwd", "text/html\r\nX: y"),
        ("ünïcode‮gpj.exe", "nonsense"),
        ("x" * 4000, ""),
    ],
)
async def test_a_hostile_name_is_only_a_name(gateway: RunningGateway, name: str, media_type: str) -> None:
    run = await gateway.start()
    await publish(gateway, await gateway.hold(run), b"<script>", name=name, media_type=media_type)
    answer = await gateway.http.get(f"/v1/runs/{run}/artifacts/art_1")
    assert answer.status_code == 200
    assert answer.headers["content-disposition"].startswith("attachment; filename*=utf-8''")
    assert "set-cookie" not in answer.headers
    assert "x" not in answer.headers
    assert "\n" not in answer.headers["content-type"]


async def test_a_payload_is_sent_where_an_event_names_it(gateway: RunningGateway) -> None:
    run, other = await gateway.start(), await gateway.start()
    hand = await gateway.hold(run)
    sha256 = await gateway.services.payloads.of(run).put(b'"large"')
    note = d.ProgressNoted(text="")
    await hand.write(NewEntry("progress.noted", AGENT, note, ref=sha256))
    await hand.write(NewEntry("progress.noted", AGENT, d.ProgressNoted(text=f'"ref":"{"a" * 64}"')))
    answer = await gateway.http.get(f"/v1/runs/{run}/payloads/{sha256}")
    assert (answer.status_code, answer.content) == (200, b'"large"')
    for path in (f"{other}/payloads/{sha256}", f"{run}/payloads/{'a' * 64}", f"{run}/payloads/x"):
        assert (await gateway.http.get(f"/v1/runs/{path}")).json()["code"] == "not_found"
    assert (await gateway.http.get(f"/v1/runs/{run}/payloads/a%22b")).json()["field"] == "ref"
