"""Scrubbing: secrets, key shapes and this machine's folders, in every place and across every boundary."""

import base64
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from towline.protocol import event_data as d
from towline.protocol import values as v
from towline.protocol.approvals import digest_of
from towline.protocol.codec import NewEntry
from towline.protocol.events import Actor
from towline.workers.commits import AttemptFailed
from towline.workers.scrub import LEAD_CHARS, PATH, Scrubber, for_worker
from towline.workers.scrub_keyed import SECRET
from towline.workers.scrub_stream import ScrubStream
from towline.workers.secrets import PREFIX, Secret
from towline.workers.settings import WorkerSettingsError, from_environment

CANARY = "canary/Pa55 wörd+"
VALUES = frozenset({CANARY, "short"})
SHAPES = [
    "sk-proj1234567890abcdefgh",
    "sk_live_4eC39HqLyjWDarjtT1zdp7dc",
    "ghp_abcdefghijklmnopqrstuvwxyz012345",
    "github_pat_11ABCDEFG0123456789abc",
    "glpat-abcdefghijklmnop1234",
    "xoxb-1234567890-abcdefg",
    "AKIAIOSFODNN7EXAMPLE",
    "AIzaSyA1234567890abcdefghijklmnopqrstuv",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbmEifQ.c2lnbmF0dXJlLXBhcnQ",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nIBAAKC\n-----END RSA PRIVATE KEY-----",
    "-----BEGIN PRIVATE KEY-----\nMIIEow\ncut off",
]
FOLDERS = ("/home/ana", "/srv/allowed root")


@pytest.fixture
def scrubber() -> Scrubber:
    return Scrubber(secrets=lambda: VALUES, folders=FOLDERS)


@pytest.mark.parametrize("form", [CANARY, quote(CANARY, safe="")])
def test_a_secret_goes_in_each_form(scrubber: Scrubber, form: str) -> None:
    assert scrubber.text(f"key={form}; again {form}") == f"key={SECRET}; again {SECRET}"


@pytest.mark.parametrize("before", [b"", b"u:", b"user:", b"abc"])
def test_base64_of_something_that_holds_a_secret_does_not_give_it_away(scrubber: Scrubber, before: bytes) -> None:
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        text = encode(before + CANARY.encode() + b" and more").decode()
        clean = scrubber.text(text)
        assert SECRET in clean
        assert len(clean.replace(SECRET, "")) < len(text) - len(CANARY)


@pytest.mark.parametrize("shape", SHAPES)
def test_what_looks_like_a_key_goes(scrubber: Scrubber, shape: str) -> None:
    assert scrubber.text(f"it is {shape}") == f"it is {SECRET}"


@pytest.mark.parametrize(
    "text",
    [
        *("plain", "a task-force of sk-learn", "0f" * 32, "art_01JABCDEFGHJKMNPQRSTVWXYZ0"),
        *("/home/anaconda", "x/home/ana", "short"),
    ],
)
def test_what_is_none_stays(scrubber: Scrubber, text: str) -> None:
    assert scrubber.text(text) == text


def test_a_folder_keeps_what_lies_below(scrubber: Scrubber) -> None:
    assert scrubber.text('File "/home/ana/x/a.py"; /srv/allowed root/b, (/home/ana)') == (
        f'File "{PATH}/x/a.py"; {PATH}/b, ({PATH})'
    )


def test_an_expression_of_the_operator_is_taken_out() -> None:
    scrubber = Scrubber(pattern=r"ACME-\d{4}")
    assert scrubber.text("ACME-1234 ACME-12") == f"{SECRET} ACME-12"
    for bad in ("(", "a*"):
        with pytest.raises(ValueError, match=r"regular expression|everywhere"):
            Scrubber(pattern=bad)
        with pytest.raises(WorkerSettingsError, match="TOWLINE_WORKER_SCRUB"):
            from_environment(
                {"TOWLINE_STORE_URL": "unix:///x", "TOWLINE_DATA": "/d", "TOWLINE_WORKER_SCRUB": bad}, name="w"
            )


KEYED = ["API_KEY=", "token: ", "Bearer ", "://u:", "@", "Authorization: ", "a1b2c3d4e5", "[secret]", " ", '"', "x"]


@given(
    st.text(alphabet="ab/ skh-_1eyJ.canary5öP", max_size=60)
    | st.lists(st.sampled_from(KEYED), max_size=12).map("".join)
)
def test_scrubbing_twice_is_scrubbing_once(text: str) -> None:
    scrubber = Scrubber(secrets=lambda: VALUES, folders=FOLDERS)
    once = scrubber.text(text + CANARY)
    assert scrubber.text(once) == once


def entry(data: Any, type_: str) -> NewEntry:
    return NewEntry(type_, Actor("agent", "wf:x"), data, private=f'{{"x":"{CANARY}"}}'.encode(), key="1:0:x:1")


def test_every_text_of_every_event_that_a_worker_writes_is_clean(scrubber: Scrubber) -> None:
    c = CANARY
    error = v.ErrorInfo("E", c)
    proposal = v.Proposal(c, [c], [c], c, c)
    made: list[tuple[str, Any]] = [
        ("run.blocked", d.RunBlocked(blocker=v.Blocker(
            id="x", kind="poison", title=c, since="", by="w", stops=True, remedies=[], detail={c: [c]}))),
        ("run.completed", d.RunCompleted(
            summary=c, claims=[v.Claim(c, [])], verified=None, result=msgspec.Raw(msgspec.json.encode({c: [c]})))),
        ("run.failed", d.RunFailed(summary=c, error=error, checkpoint=None, abandoned=[])),
        ("plan.proposed", d.PlanProposed(items=[v.PlanItem("1", c)], why=c)),
        ("plan.step", d.PlanStep(id="1", status="done", note=c)),
        ("tool.started", d.ToolStarted(step="s", name="n", title=c, attempt=1, effect="read")),
        ("tool.retrying", d.ToolRetrying(step="s", attempt=1, error=error, retry_at="")),
        ("tool.finished", d.ToolFinished(step="s", attempt=1, summary=c, duration_ms=1, result={c: c})),
        ("tool.failed", d.ToolFailed(step="s", attempt=1, error=error)),
        ("message.completed", d.MessageCompleted(
            message="m", attempt=1, role=c, kind="text", text=c, partial=False)),
        ("progress.noted", d.ProgressNoted(text=c, topic=c, data={"k": [{c: c}]})),
        ("artifact.created", d.ArtifactCreated(artifact="a", name=c, media_type=c, size=1, sha256="0" * 64)),
        ("checkpoint.saved", d.CheckpointSaved(title=c, done=[c], next=[c], evidence=[], automatic=False)),
        ("approval.requested", d.ApprovalRequested(
            request="apr_1", title=c, proposal=proposal, digest=digest_of("apr_1", proposal, []),
            questions=[v.Question("q", c)], deciders=["role:owner"], exclude=[], quorum=1, why=c)),
        ("command.applied", d.CommandApplied(command_id="k", type="signal", effect=c, result={c: c})),
        ("command.rejected", d.CommandRejected(command_id="k", type="signal", code="x", text=c)),
        ("timer.started", d.TimerStarted(timer="t", due_at="", why=c)),
    ]  # fmt: skip
    for type_, data in made:
        before = entry(data, type_)
        clean = scrubber.entry(before)
        text = msgspec.json.encode(clean.data).decode()
        assert CANARY not in text, type_
        assert SECRET in text, type_
        assert type(clean.data) is type(data)
        assert (clean.private, clean.key) == (before.private, before.key), "history replay reads what it was"
        assert scrubber.entry(clean) is clean


def test_the_digest_is_of_what_people_are_shown(scrubber: Scrubber) -> None:
    proposal = v.Proposal(CANARY, [], [], "b", "r")
    asked = d.ApprovalRequested(
        request="apr_1", title="T", proposal=proposal, digest=digest_of("apr_1", proposal, []), questions=[],
        deciders=[], exclude=[], quorum=1,
    )  # fmt: skip
    clean = scrubber.data(asked)
    assert clean.proposal is not None
    assert clean.digest == digest_of("apr_1", clean.proposal, []) != asked.digest


def test_ids_that_happen_to_look_alike_stay() -> None:
    scrubber = Scrubber(secrets=lambda: frozenset({"1:0:look:1"}))
    data = d.ToolFailed(step="1:0:look:1", attempt=1, error=v.ErrorInfo("E", "at 1:0:look:1"))
    clean = scrubber.data(data)
    assert (clean.step, clean.error.message) == ("1:0:look:1", f"at {SECRET}")


def test_an_error_is_clean_before_the_code_hears_of_it(scrubber: Scrubber) -> None:
    failed = AttemptFailed(step="s", attempt=1, error=v.ErrorInfo("E", f"bad {CANARY}"))
    outcome = scrubber.outcome(failed)
    assert isinstance(outcome, AttemptFailed)
    assert outcome.error.message == f"bad {SECRET}"


def cut(text: str, places: list[int]) -> list[str]:
    at = sorted({min(place, len(text)) for place in places})
    return [text[a:b] for a, b in zip([0, *at], [*at, len(text)], strict=True)]


@pytest.mark.parametrize("secret", [CANARY, *SHAPES[:-1], "/home/ana/", "/srv/allowed root/"])
def test_no_boundary_lets_more_than_its_beginning_through(scrubber: Scrubber, secret: str) -> None:
    text = f"Reading, {secret} and so on."
    start = text.index(secret)
    for first in range(start, start + len(secret) + 1):
        for step in (1, 2, 5, len(secret)):
            pieces = cut(text, list(range(first, len(text), step)))
            stream = ScrubStream(scrubber)
            out = "".join([stream.feed(piece) for piece in pieces] + [stream.flush()])
            assert secret[: LEAD_CHARS + 1] not in out, (pieces, out)
            assert SECRET in out or PATH in out
            assert out.startswith("Reading, ")
            assert out.endswith(" and so on.")


@given(st.text(alphabet="ab cx/ö\n", max_size=80), st.lists(st.integers(0, 80), max_size=20))
def test_a_text_that_is_nothing_of_the_kind_comes_whole_and_at_once(text: str, places: list[int]) -> None:
    stream = ScrubStream(Scrubber(secrets=lambda: frozenset({"zzzzzzzz"}), folders=["/home/ana"]))
    pieces = cut(text, places)
    assert [stream.feed(piece) for piece in pieces] == pieces
    assert stream.flush() == ""


def test_of_an_endless_secret_nothing_comes_but_its_replacement(scrubber: Scrubber) -> None:
    for start, middle, end in (
        ("sk-1", "abcdefgh", " done"),
        ("-----BEGIN PRIVATE KEY-----\n", "MIIEvQ ABC\n", "-----END PRIVATE KEY----- done"),
    ):
        stream = ScrubStream(scrubber)
        out = stream.feed(start) + "".join(stream.feed(middle) for _ in range(2_000)) + stream.feed(end)
        out += stream.flush()
        assert out == f"{SECRET} done"


def test_a_secret_is_its_name_until_an_activity_reveals_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PREFIX + "DEPLOY_KEY", "tr0ub4dor&3")
    secret = Secret("DEPLOY_KEY")
    assert msgspec.json.encode(secret) == b'{"name":"DEPLOY_KEY"}'
    assert secret.reveal() == "tr0ub4dor&3"
    assert Scrubber().text("it is tr0ub4dor&3") == f"it is {SECRET}"
    for name in ("MISSING", "PATH", "../X"):
        with pytest.raises(LookupError):
            Secret(name).reveal()


def test_a_worker_knows_its_secrets_and_folders_from_the_start(tmp_path: Path) -> None:
    allowed = tmp_path / "allowed"
    environment = {"TOWLINE_ALLOW_PATHS": str(allowed), PREFIX + "X": "n3ver revealed"}
    scrubber = for_worker("", tmp_path / "data" / "payloads", environment)
    text = f"{allowed}/a n3ver revealed {Path.home()}/b {Path.cwd()}/c {tmp_path}/data/d"
    assert scrubber.text(text) == f"{PATH}/a {SECRET} {PATH}/b {PATH}/c {PATH}/d"
