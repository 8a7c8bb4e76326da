"""A secret that is cut by a boundary between two pieces of a stream is taken out all the same, and its rest too.

The symptom: each chunk was redacted by itself, so the two halves of a secret were stored and sent; and what is known
by its name (`MY_API_KEY=…`, headers, URLs with passwords) came through when the cut fell into the name.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.workers import Stage, stage
from towline.workers import Context, activity
from towline.workers.registry import Registry, Retry
from towline.workers.scrub import LEAD_CHARS, Scrubber
from towline.workers.scrub_keyed import SECRET
from towline.workers.scrub_stream import ScrubStream
from towline.workers.secrets import PREFIX

REGISTERED = "Zq8-registered+value/of forty characters"
_LINES = "\n".join(f"MIIEow{n:02}{'abcdXYZ/' * 6}" for n in range(20))
PEM = f"-----BEGIN RSA PRIVATE KEY-----\n{_LINES}\n-----END RSA PRIVATE KEY-----"
SECRETS = {
    "known": (REGISTERED, REGISTERED),
    "key": ("sk-proj-Abc1234567890defgh", "sk-proj-Abc1234567890defgh"),
    "assignment": ("MY_API_KEY=hunter2hunter2", "hunter2hunter2"),
    "assignment in JSON": ('{"api_key": "h4nter2hunter2"}', "h4nter2hunter2"),
    "header": ("Authorization: Bearer qwertyuiop.asdfgh", "qwertyuiop.asdfgh"),
    "basic": ("authorization: Basic dXNlcjpwYXNzd29yZA==", "dXNlcjpwYXNzd29yZA=="),
    "URL": ("postgres://ana:s3cr3t!pass@db.example:5432/shop", "s3cr3t!pass"),
    "PEM": (PEM, PEM.split("\n", 1)[1]),
}
PLAIN = [
    "The token was refreshed, the password is required and the secret: patience.",
    "Authorization: required. Bearer of good news; see https://example.org:8080/a@b and max_tokens=4096.",
    "Set API_KEY before you start; api_key: see the manual; password: ask Ana",
    "passenger, authors and secretary tokenise apiculture",
    "👩‍👩‍👧 http://127.0.0.1:8787",
]


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest.fixture
async def workers(redis_url: str, tmp_path: Path, registry: Registry) -> AsyncIterator[Stage]:
    async with stage(redis_url, tmp_path, registry) as opened:
        yield opened


@pytest.fixture
def scrubber() -> Scrubber:
    return Scrubber(secrets=lambda: frozenset({REGISTERED}))


def streamed(scrubber: Scrubber, *pieces: str) -> str:
    stream = ScrubStream(scrubber)
    return "".join([stream.feed(piece) for piece in pieces] + [stream.flush()])


def assert_gone(out: str, secret: str, pieces: Any) -> None:
    """No part of the secret that is longer than what may have left before it was known."""
    size = LEAD_CHARS + 1
    parts = {secret[at : at + size] for at in range(len(secret) - size + 1)}
    left = {part for part in parts if part in out}
    assert not left, (left, pieces, out)


@pytest.mark.parametrize("name", SECRETS)
def test_wherever_it_is_cut(scrubber: Scrubber, name: str) -> None:
    said, secret = SECRETS[name]
    text = f"Look: {said} and so on."
    whole = scrubber.text(text)
    assert SECRET in whole
    for cut in range(0, len(text) + 1, 1 + len(text) // 200):
        out = streamed(scrubber, text[:cut], text[cut:])
        assert_gone(out, secret, cut)
        assert out.startswith("Look: ")
        assert out.endswith(" and so on.")
    assert_gone(streamed(scrubber, *text), secret, "one by one")


@pytest.mark.parametrize("name", SECRETS)
def test_a_stream_that_ends_in_the_middle(scrubber: Scrubber, name: str) -> None:
    said, secret = SECRETS[name]
    text = f"Look: {said}"
    begins = text.index(secret)
    for end in range(begins + 1, len(text), 1 + len(secret) // 50 * 10):
        for pieces in ((text[:end],), (text[:begins], *text[begins:end])):
            out = streamed(scrubber, *pieces)
            if name == "key" and end - begins <= len("sk-proj-Abc"):
                continue  # so far it is a word like any other
            assert_gone(out, secret, pieces)


@pytest.mark.parametrize("text", PLAIN)
def test_a_text_without_a_secret_comes_unchanged(scrubber: Scrubber, text: str) -> None:
    assert scrubber.text(text) == text
    for cut in range(len(text) + 1):
        assert streamed(scrubber, text[:cut], text[cut:]) == text
    assert streamed(scrubber, *text) == text


@pytest.mark.store
async def test_nothing_of_them_is_stored_or_sent(
    workers: Stage, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PREFIX + "REGISTERED", REGISTERED)

    async def leak() -> None:
        for name, (said, _) in SECRETS.items():
            for letter in f"<{name}> {said} and so on.":
                activity.delta(letter)

    leaks: Any = registry.activity(leak, effect="none", retry=Retry(attempts=1))

    async def body(ctx: Context) -> None:
        await ctx.run(leaks)

    registry.workflow(name="leaks")(body)
    await workers.worker()
    run = await workers.start("leaks")
    await workers.ended(run)
    (said,) = [event.data["text"] for event in await workers.events(run) if event.type == "message.completed"]
    for name, (_, secret) in SECRETS.items():
        assert_gone(said, secret, name)
        assert f"<{name}> " in said
    assert said.count(" and so on.") == len(SECRETS)
