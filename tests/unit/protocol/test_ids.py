"""Ids: what may name things, and where a run lives."""

import binascii
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from towline.protocol import ids
from towline.protocol.store.keys import RunKeys, index_part, run_of_channel, timer_member

HOSTILE = ["", "a b", "a\n", "a\x00", "{a}", "a}b", "ü", "a/b", "\ud800", "a|b", "-a", ".a", "a" * 129]
CHECKS = [ids.is_run_id, ids.is_client_run_id, ids.is_command_id, ids.is_name, ids.is_subject]


def slot(key: str) -> int:
    return binascii.crc_hqx(key.encode(), 0) % 16384


def test_the_partition_table_is_the_first_number_of_each_range_of_slots() -> None:
    table = list[int]()
    for i in range(64):
        table.append(next(n for n in range(100_000) if slot(f"tl:{n:02d}") // 256 == i))
    assert tuple(table) == ids.PARTITION_TAGS


def test_partitions_spread_evenly_over_masters() -> None:
    for masters in (2, 3, 6, 8, 12):
        owners = [slot(ids.tag_of(p)) * masters // 16384 for p in range(64)]
        counts = [owners.count(m) for m in range(masters)]
        assert max(counts) - min(counts) <= 1


def test_the_partition_of_a_run_is_a_stored_layout() -> None:
    assert [ids.partition_of(r) for r in ("review-1", "run_0000000000000000000000000A", "a")] == [
        binascii.crc_hqx(r.encode(), 0) % 64 for r in ("review-1", "run_0000000000000000000000000A", "a")
    ]
    assert ids.tag_of(3) == "tl:03"
    assert ids.tag_of(2) == "tl:123"


def test_server_made_ids_are_of_their_form_and_fall_where_asked() -> None:
    for partition in (None, 0, 63):
        run = ids.new_run_id(partition)
        assert re.fullmatch(r"run_[0-9A-HJKMNP-TV-Z]{26}", run)
        assert ids.is_run_id(run)
        assert not ids.is_client_run_id(run)
        assert partition is None or ids.partition_of(run) == partition


@given(st.binary(min_size=17, max_size=40))
def test_a_derived_id_is_a_function_of_its_digest(digest: bytes) -> None:
    run = ids.derived_run_id(digest)
    assert ids.is_run_id(run)
    assert run == ids.derived_run_id(digest)
    assert run != ids.derived_run_id(bytes([digest[0] ^ 1]) + digest[1:])


def test_derived_ids_do_not_collide_in_the_low_bits() -> None:
    made = {ids.derived_run_id(n.to_bytes(17, "big")) for n in range(5000)}
    assert len(made) == 5000


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("check", [ids.is_run_id, ids.is_client_run_id, ids.is_name])
def test_what_would_leave_its_key_names_nothing(check: object, text: str) -> None:
    assert callable(check)
    assert not check(text)


@pytest.mark.parametrize("text", ["run_1", "run_", "run_0000000000000000000000000I", "run_" + "A" * 27])
def test_a_client_may_not_take_the_servers_names(text: str) -> None:
    assert not ids.is_client_run_id(text)
    assert not ids.is_run_id(text)


@pytest.mark.parametrize("text", ["", " ", "a b", "a\u2028", "a\x85", "a\x9f", "\ud800", "a" * 257])
def test_a_subject_is_one_word_that_can_be_written(text: str) -> None:
    assert not ids.is_subject(text)


@given(st.text(max_size=140))
def test_whatever_passes_stays_in_its_key_and_on_its_line(text: str) -> None:
    if ids.is_run_id(text):
        keys = RunKeys.of(text)
        for key in (keys.log, keys.private, keys.run, keys.side, keys.channel):
            assert key.endswith(":" + text)
            assert key.count("{") == key.count("}") == 1
            assert not re.search(r"\s", key)
        assert run_of_channel(keys.channel) == text
        assert timer_member("timer", "a|b", text).split("|")[2] == text
    if ids.is_subject(text):
        assert "|" not in index_part(text)
        assert text.isprintable() or not re.search(r"[\s\x00-\x1f]", text)
    for check in CHECKS:
        assert check(text) in (True, False)
