"""Each script's header is its contract: keys, members of the request, replies. Here it is held against the calls."""

import re
from typing import Any, Final

import pytest

from tests.support.lab import Lab, approval, ending, grant, note
from towline.protocol import event_data as d
from towline.protocol.codec import NewEntry
from towline.protocol.deltas import Piece
from towline.protocol.store.api import Lease, Timer
from towline.protocol.store.keys import timer_member
from towline.protocol.store.openends import SYSTEM
from towline.protocol.store.scripts import WORDS, compile_script, script_names, source_of
from towline.protocol.store.sweep import has_come

SCRIPTS: Final = (
    "accept_command", "append_once", "change_access", "claim_run", "close_run", "commit", "create_run",
    "fire_timer", "publish_delta", "purge_run", "rehint_run", "release_run", "renew_leases", "reserve_id", "start_run",
    "sweep_partition", "take_tokens", "trim_log",
)  # fmt: skip


def header(name: str) -> str:
    lines = [line for line in source_of(name).splitlines() if line.startswith("--")]
    return " ".join(line.removeprefix("--").strip() for line in lines)


def keys_of(name: str) -> list[tuple[str, str]]:
    """(name, type) of each key, in order; an open list ends with the repeated one."""
    text = header(name).partition("KEYS")[2].partition("ARGV")[0]
    found = re.findall(r"(\d+)(?:\.\.)? (\w+) \((\w+)\)", text)
    assert [int(n) for n, _, _ in found] == list(range(1, len(found) + 1))
    return [(key, kind) for _, key, kind in found]


def members_of(name: str) -> set[str]:
    text = header(name).partition("request (msgpack):")[2].partition("returns")[0]
    while (shorter := re.sub(r"\([^()]*\)", "", text)) != text:
        text = shorter
    words = set(re.findall(r"\w+", text))
    return (words - {"as", "commit", "lua", "and"}) | members_of("commit") if "as commit.lua" in text else words


def words_of(name: str) -> tuple[set[str], set[str]]:
    """Reply words that the header names, and those that the text can answer."""
    said = {word for word in re.findall(r"\b[A-Z]{2,}\b", header(name).partition("returns")[2]) if word in WORDS}
    text = compile_script(name, relief="class: growth" not in source_of(name)).text
    body = source_of(name) + (text if re.search(r"check_fence\(|refuse_acceptance\(", source_of(name)) else "")
    code = "\n".join(line for line in body.splitlines() if not line.startswith("--"))
    return said, {word for word in re.findall(r"'([A-Z]{2,})'", code) if word in WORDS}


def test_these_are_all() -> None:
    assert tuple(script_names()) == SCRIPTS


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_answer_is_in_the_header_and_in_the_closed_list(name: str) -> None:
    said, answered = words_of(name)
    assert said == answered


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_runs_only_as_the_class_it_says(name: str) -> None:
    kind = re.search(r"class: (\w+)", source_of(name))
    assert kind is not None
    for relief in (True, False):
        if kind[1] in ("either", "relief" if relief else "growth"):
            text = compile_script(name, relief=relief).text
            assert text.startswith("#!lua flags=allow-oom\n" if relief else "#!lua\n")
        else:
            with pytest.raises(ValueError, match="cannot run as"):
                compile_script(name, relief=relief)


async def call_all(lab: Lab) -> None:
    """Each script once, with something in every list."""
    lease = await lab.held("r3")
    again = NewEntry("run.continued", SYSTEM, d.RunContinued(generation=1))
    await lab.store.commit(lab.commit(lease, 1, again))
    await lab.store.trim_log("r3", lease.fence, await lab.head("r3"), await lab.store.load("r3"), side={})
    await lab.store.close(lab.commit(lease, 2, ending(), seen=await lab.head("r3")))
    await lab.store.bury_run("r3", by="op", version="", kept={"g|user:bob": "viewer"}, unlisted=["a|"])
    lease = await lab.held()
    asked, side = approval("q1")
    await lab.store.renew([Lease("r1", lease.fence, "s1")])
    piece = Piece("m1", 1, 0, "text")
    await lab.store.publish_pieces("r1", lease.fence, [piece], [piece])
    await lab.store.commit(lab.commit(lease, 1, asked, side=side, arm=[Timer("timer", "t", 1)]))
    await lab.store.append_once("r1", lease.fence, field="a|x", value="{}", entries=[note()])
    await lab.store.fire_timer(
        "r1", "default", timer_member("timer", "t", "r1"),
        [NewEntry("timer.fired", SYSTEM, d.TimerFired(timer="t"), is_input=True)],
    )  # fmt: skip
    await lab.accept()
    await lab.store.take_tokens("creates", "user:ana", per_s=1, burst_s=4, least=1, most=1)
    await lab.store.release(lab.commit(lease, 2, note(), seen=await lab.head()), "hand_over")
    await lab.store.rehint("r1", "default")
    await lab.store.take_sweep(0, "s", 1000)
    lease = await lab.claim()
    await lab.store.change_access(grant("r1", "user:bob", "viewer"))
    await lab.store.close(lab.commit(lease, 1, ending()))
    await lab.create("r2", start_ms=lab.store.now_ms() + 10**6)
    await lab.store.start_due("r2", "default", has_come)
    await lab.create("r4", command=lab.command("r4"))
    await lab.store.reserve("r5", "r6")


async def test_keys_and_requests_are_those_of_the_headers(lab: Lab) -> None:
    await call_all(lab)
    for name in SCRIPTS:
        keys, request, reply = lab.last(name)
        expected = keys_of(name)
        assert len(keys) == len(expected), name
        for key, (role, kind) in zip(keys, expected, strict=True):
            is_gone = name in ("purge_run", "trim_log") and role in ("log", "private")  # deleted since
            assert (await lab.raw.type(key)).decode() == ("none" if is_gone else kind), (name, key)
            assert re.search(rf":{role}(:|$)", key), (name, key, role)
        assert set(request) == members_of(name), name
        assert reply[0] in {word.encode() for word in WORDS} or name == "renew_leases"
        tags = {key[key.index("{") : key.index("}")] for key in keys}
        assert len(tags) == 1, name


async def test_every_key_of_a_script_exists_from_initialisation(lab: Lab) -> None:
    missing: list[Any] = []
    for partition in range(64):
        await lab.store.take_sweep(partition, "s", 1000)
        keys, _, _ = lab.last("sweep_partition")
        missing += [key for key in keys if not await lab.raw.exists(key)]
    await lab.create()
    keys, _, _ = lab.last("create_run")
    missing += [key for key in keys if not await lab.raw.exists(key)]
    assert missing == []
