"""Merging unfinished text for one reader: holes, attempts, late joiners, what ends it."""

from typing import Any

import msgspec

from towline.protocol import deltas as dl
from towline.protocol.codec import Entry, EntryMeta
from towline.protocol.deltas import DeltaLane, Piece, ReadTexts, SendDelta


def piece(offset: int, text: str, *, message: str = "m", attempt: int = 1, **more: Any) -> Piece:
    return Piece(message, attempt, offset, text, **more)


def event(kind: str, **data: Any) -> Entry:
    wire = {"seq": 9, "ts": "", "cause": None, "type": kind, "actor": {"kind": "agent", "id": "a"}, "data": data}
    return Entry(9, 1, msgspec.json.encode(wire), EntryMeta())


def joined() -> DeltaLane:
    """A lane that has looked for stored texts and found none."""
    lane = DeltaLane()
    assert lane.next_action(0) == ReadTexts()
    lane.receive_texts([], 0)
    return lane


def sent(lane: DeltaLane, now_ms: int = 0) -> list[tuple[str, int, int, str]]:
    """Every delta that can be sent now."""
    found = []
    while (action := lane.next_action(now_ms)) is not None:
        assert isinstance(action, SendDelta), action
        found.append((action.piece.message, action.piece.attempt, action.piece.offset, action.piece.text))
    return found


def test_a_subscription_begins_with_the_texts_so_far() -> None:
    lane = DeltaLane()
    lane.receive_pieces([piece(5, " you")], 0)
    assert lane.next_action(0) == ReadTexts()
    lane.receive_texts([piece(0, "Hello")], 0)
    assert sent(lane) == [("m", 1, 0, "Hello you")]


def test_pieces_go_on_where_the_last_ended_and_repeats_are_dropped() -> None:
    lane = joined()
    lane.receive_pieces([piece(0, "ab")], 0)
    assert sent(lane) == [("m", 1, 0, "ab")]
    lane.receive_pieces([piece(0, "ab"), piece(1, "bc"), piece(3, "d")], 0)
    assert sent(lane) == [("m", 1, 2, "cd")]


def test_the_first_of_an_attempt_begins() -> None:
    lane = joined()
    lane.receive_pieces([piece(0, "a"), piece(0, "z", message="n", kind="reasoning")], 0)
    first, second = lane.next_action(0), lane.next_action(0)
    assert isinstance(first, SendDelta)
    assert isinstance(second, SendDelta)
    assert (first.begins, second.begins, second.piece.kind) == (True, True, "reasoning")
    lane.receive_pieces([piece(1, "b")], 0)
    third = lane.next_action(0)
    assert isinstance(third, SendDelta)
    assert not third.begins


def test_what_follows_for_a_reader_who_lacks_nothing_may_be_passed_on() -> None:
    lane = joined()
    lane.receive_pieces([piece(0, "a")], 0)
    assert not lane.are_next([piece(1, "b")])  # "a" is not sent yet
    assert sent(lane) == [("m", 1, 0, "a")]
    assert not lane.are_next([piece(0, "x", message="n")])  # its first frame says what it is
    assert not lane.are_next([piece(2, "c")])
    assert not lane.are_next([piece(1, "b", attempt=2)])
    assert not lane.are_next([piece(1, "b" * (dl.FRAME_CHARS + 1))])
    pieces = [piece(1, "b"), piece(2, "c")]
    assert lane.are_next(pieces)
    lane.receive_passed_on(pieces)
    assert sent(lane) == []
    lane.receive_pieces([piece(0, "abcd")], 0)
    assert sent(lane) == [("m", 1, 3, "d")]
    lane.receive_pieces([piece(9, "hole")], 0)
    assert not lane.are_next([piece(4, "e")])
    lane.receive_sent([event("message.completed", message="m")])
    assert not lane.are_next([piece(4, "e")])


def test_a_hole_waits_for_the_next_stored_text() -> None:
    lane = joined()
    lane.receive_pieces([piece(0, "a"), piece(2, "c"), piece(4, "e")], 100)
    assert sent(lane, 100) == [("m", 1, 0, "a")]
    assert lane.deadline_ms() == 100 + dl.STORED_EVERY_MS
    assert lane.next_action(1100) == ReadTexts()
    lane.receive_texts([piece(0, "abc")], 1100)  # not far enough for the second hole
    assert sent(lane, 1100) == [("m", 1, 1, "bc")]
    assert lane.next_action(2100) == ReadTexts()
    lane.receive_texts([piece(0, "abcdef")], 2100)
    assert sent(lane, 2100) == [("m", 1, 3, "def")]
    assert lane.deadline_ms() is None


def test_a_hole_that_nothing_fills_is_given_up() -> None:
    lane = joined()
    lane.receive_pieces([piece(3, "d")], 0)
    reads = 0
    while (due_ms := lane.deadline_ms()) is not None:
        assert lane.next_action(due_ms) == ReadTexts()
        lane.receive_texts([], due_ms)
        reads += 1
    assert 1 < reads < 10


def test_a_text_whose_beginning_is_gone_is_sent_as_truncated() -> None:
    lane = DeltaLane()
    lane.next_action(0)
    lane.receive_texts([piece(100, "tail")], 0)
    action = lane.next_action(0)
    assert isinstance(action, SendDelta)
    assert (action.piece.offset, action.truncated, action.begins) == (100, True, True)
    lane.receive_pieces([piece(104, "!")], 0)
    action = lane.next_action(0)
    assert isinstance(action, SendDelta)
    assert (action.piece.offset, action.truncated) == (104, False)


def test_a_reader_too_far_behind_the_kept_end_begins_there() -> None:
    lane = joined()
    lane.receive_pieces([piece(0, "a"), piece(200, "x")], 0)
    assert sent(lane) == [("m", 1, 0, "a")]
    lane.next_action(1000)
    lane.receive_texts([piece(150, "y" * 50)], 1000)
    action = lane.next_action(1000)
    assert isinstance(action, SendDelta)
    assert (action.piece.offset, action.piece.text, action.truncated) == (150, "y" * 50 + "x", True)


def test_a_larger_attempt_replaces_and_a_smaller_one_is_dropped() -> None:
    lane = joined()
    lane.receive_pieces([piece(0, "first")], 0)
    assert sent(lane) == [("m", 1, 0, "first")]
    lane.receive_pieces([piece(5, " more"), piece(0, "second", attempt=2), piece(10, "!")], 0)
    lane.receive_texts([piece(0, "first more!")], 0)
    assert sent(lane) == [("m", 2, 0, "second")]


def test_nothing_follows_the_finished_message() -> None:
    lane = joined()
    lane.receive_pieces([piece(0, "a"), piece(0, "b", message="n", step="s")], 0)
    lane.receive_sent([event("progress.noted", text="x"), event("message.completed", message="m")])
    assert sent(lane) == [("n", 1, 0, "b")]
    lane.receive_pieces([piece(1, "c"), piece(0, "again", attempt=2), piece(1, "more", message="n")], 0)
    lane.receive_texts([piece(0, "late")], 0)
    assert sent(lane) == [("n", 1, 1, "more")]


def test_the_end_of_a_step_ends_its_messages_and_the_end_of_the_run_all() -> None:
    lane = joined()
    lane.receive_pieces([piece(0, "{", message=name, step=name, kind="tool_arguments") for name in "ab"], 0)
    lane.receive_sent([event("tool.failed", step="a")])
    assert sent(lane) == [("b", 1, 0, "{")]
    lane.receive_sent([event("run.failed")])
    lane.receive_pieces([piece(1, "}", message="b")], 0)
    lane.receive_loss(0)
    assert sent(lane, 10_000) == []
    assert lane.deadline_ms() is None


def test_what_a_slow_reader_has_not_taken_is_merged_and_past_a_bound_read_again() -> None:
    lane = joined()
    whole = ""
    for number in range(20_000):
        text = f"{number:05}"
        lane.receive_pieces([piece(len(whole), text)], 0)
        whole += text
    assert lane.next_action(0) is None  # forgotten: it is longer than what one reader may hold here
    assert lane.next_action(1000) == ReadTexts()
    lane.receive_texts([piece(len(whole) - 100, whole[-100:])], 1000)
    assert sent(lane, 1000) == [("m", 1, len(whole) - 100, whole[-100:])]


def test_what_is_held_of_all_messages_together_is_bounded_and_comes_all_the_same() -> None:
    lane = joined()
    names = [str(number) for number in range(100)]
    whole = {name: f"{name}:" + "é" * 10_000 for name in names}
    for start in range(0, 10_000, 500):
        for name in names:
            lane.receive_pieces([piece(start, whole[name][start : start + 500], message=name)], 0)
            assert lane._held_chars() < 70 * 1024
    shown = dict.fromkeys(names, "")
    now_ms = 0
    while shown != whole:
        now_ms += 1000
        assert now_ms < 100_000
        while (action := lane.next_action(now_ms)) is not None:
            if isinstance(action, ReadTexts):
                lane.receive_texts([piece(0, whole[name], message=name) for name in names], now_ms)
                assert lane._held_chars() < 100 * 1024
                continue
            assert action.piece.offset == len(shown[action.piece.message])
            shown[action.piece.message] += action.piece.text


def test_a_long_text_leaves_in_frames_that_cut_no_code_point() -> None:
    lane = joined()
    text = "👩‍👩‍👧‍👦é\u0301שלום" * 1000
    lane.receive_pieces([piece(0, text)], 0)
    frames = sent(lane)
    assert len(frames) > 1
    assert "".join(part for _, _, _, part in frames) == text
    assert [offset for _, _, offset, _ in frames] == list(range(0, len(text), dl.FRAME_CHARS))


def test_many_messages_are_bounded() -> None:
    lane = joined()
    lane.receive_pieces([piece(0, "x", message=str(n)) for n in range(10_000)], 0)
    assert len(sent(lane)) < 1000


def test_a_piece_travels_as_one_line() -> None:
    made = piece(3, "line\nbreak \u2028 👍", kind="reasoning", step="s", audience="operator")
    assert b"\n" not in dl.encode_piece(made)
    assert dl.decode_piece(dl.encode_piece(made)) == made
    assert [dl.audience_of(kind) for kind in ("text", "reasoning", "tool_arguments")] == [
        "collaborator", "operator", "collaborator",
    ]  # fmt: skip
