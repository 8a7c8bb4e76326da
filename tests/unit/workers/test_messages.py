"""What `activity.delta` adds to: pieces that are contiguous, whole code points, and one end for every text."""

import threading

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from towline.protocol.deltas import STORED_BYTES, Piece
from towline.workers import messages as m
from towline.workers.messages import Messages
from towline.workers.scrub import LEAD_CHARS, MARKS
from towline.workers.scrub_keyed import WORDS


def begun(step: str = "s", attempt: int = 1) -> Messages:
    made = Messages("run-1")
    made.begin(step, attempt)
    return made


def say(made: Messages, *texts: str, step: str = "s", attempt: int = 1, message: str | None = "m") -> None:
    for text in texts:
        made.append(step, attempt, text, message, "text")


def fresh(made: Messages) -> list[tuple[str, int, int, str]]:
    return [(p.message, p.attempt, p.offset, p.text) for p in made.take_fresh()]


def test_pieces_are_contiguous_and_count_code_points() -> None:
    made = begun()
    say(made, "a👍", "b")
    assert fresh(made) == [("m", 1, 0, "a👍b")]
    assert fresh(made) == []
    say(made, "é")
    assert fresh(made) == [("m", 1, 3, "é")]


def test_a_very_long_text_leaves_in_pieces() -> None:
    made = begun()
    text = "שלום👩‍👩‍👧" * 5000
    say(made, text)
    pieces = fresh(made)
    assert "".join(part for *_, part in pieces) == text
    assert [offset for _, _, offset, _ in pieces] == list(range(0, len(text), m.PIECE_CHARS))


def test_texts_without_a_name_are_one_message_of_each_kind_and_step() -> None:
    made = begun()
    made.begin("t", 1)
    for step in "st":
        made.append(step, 1, "x", None, "text")
        made.append(step, 1, "y", None, "text")
        made.append(step, 1, "why", None, "reasoning")
    pieces = made.take_fresh()
    assert len({piece.message for piece in pieces}) == 4
    assert {(p.step, p.kind, p.text, p.audience) for p in pieces} == {
        (step, *rest) for step in "st" for rest in (("text", "xy", "collaborator"), ("reasoning", "why", "operator"))
    }
    again = begun()
    again.append("s", 1, "z", None, "text")
    assert again.take_fresh()[0].message == pieces[0].message  # another holder finds the same name


def test_a_surrogate_pair_in_two_pieces_becomes_one_code_point() -> None:
    made = begun()
    say(made, "a\ud83d")
    assert fresh(made) == [("m", 1, 0, "a")]
    say(made, "\udc4d", "\udc4d b \ud83d")
    assert fresh(made) == [("m", 1, 1, "👍\ufffd b ")]
    (data,) = made.finish("s")
    assert data.text == "a👍\ufffd b \ufffd"
    assert not data.partial


HELD_BACK = {mark[: LEAD_CHARS + 1].lower() for mark in (*MARKS, *WORDS, "-----BEGIN ")}
"""Where one of these stands a text may wait: what follows could make it a key."""


def rendered_in_pieces(made: Messages, text: str, cuts: list[int]) -> str:
    """What a reader has of `text` once it was said in pieces, cut between UTF-16 units."""
    units = text.encode("utf-16-le")
    halves = [units[i : i + 2].decode("utf-16-le", "surrogatepass") for i in range(0, len(units), 2)]
    rendered = ""
    while halves:
        for size in cuts:
            say(made, "".join(halves[:size]))
            halves = halves[size:]
            for piece in made.take_fresh():
                assert piece.offset == len(rendered)
                rendered += piece.text
    return rendered


@given(st.text(), st.lists(st.integers(1, 5), min_size=1))
def test_however_a_text_is_cut_it_comes_out_whole(text: str, cuts: list[int]) -> None:
    assume(not any(mark in text.lower() for mark in HELD_BACK))
    made = begun()
    rendered = rendered_in_pieces(made, text, cuts)
    assert rendered == text
    assert "".join(data.text or "" for data in made.finish("s")) == text


@pytest.mark.parametrize(
    "text", ["eyJ", "so far eyJ", "a word -----BEG", "xox", "👍 ghp_", "the pass", "API_KEY", "see http://"]
)
def test_what_could_become_a_key_waits_and_comes_with_the_whole(text: str) -> None:
    made = begun()
    rendered = rendered_in_pieces(made, text, [1])
    assert rendered != text
    assert text.startswith(rendered)
    assert "".join(data.text or "" for data in made.finish("s")) == text


def test_the_one_who_publishes_is_told_at_the_first_text_and_when_there_is_enough() -> None:
    told: list[int] = []
    made = Messages("run-1", lambda: told.append(made.fresh_bytes))
    made.begin("s", 1)
    say(made, *["é" * 100] * 20)
    assert told == [200, 1200]
    made.take_fresh()
    say(made, "x")
    assert told == [200, 1200, 1]


def test_the_text_so_far_is_taken_when_it_changed() -> None:
    made = begun()
    assert made.is_kept
    say(made, "ab")
    assert not made.is_kept
    assert [text.text for text in made.take_texts()] == ["ab"]
    assert (made.is_kept, made.take_texts()) == (True, [])
    made.untake_texts(["m", "gone"])
    assert [(text.offset, text.text) for text in made.take_texts()] == [(0, "ab")]


@pytest.mark.parametrize("char", ["x", "é", "👍", "\x00"])
def test_of_a_long_text_the_end_is_kept(char: str) -> None:
    made = begun()
    say(made, char * 60_000, "end")
    (text,) = made.take_texts()
    assert text.text.endswith(char + "end")
    assert text.end == 60_003
    assert STORED_BYTES * 0.9 < len(text.text.encode()) <= STORED_BYTES


def test_a_new_attempt_begins_anew_and_what_it_leaves_out_stays_partial() -> None:
    made = begun()
    say(made, "first")
    say(made, "only once", message="n")
    made.stop("s")
    say(made, "too late")
    made.begin("s", 2)
    say(made, "from before", attempt=1)
    say(made, "second", attempt=2)
    assert ("m", 2, 0, "second") in fresh(made)
    found = {data.message: (data.attempt, data.text, data.partial) for data in made.finish("s")}
    assert found == {"m": (2, "second", False), "n": (1, "only once", True)}
    assert made.finish("s") == ()


def test_a_step_that_fails_leaves_its_texts_partial_and_no_other() -> None:
    made = begun()
    made.begin("t", 1)
    say(made, "a")
    say(made, "b", step="t", message="n")
    assert [(d.message, d.partial, d.step) for d in made.abandon("s")] == [("m", True, "s")]
    assert [(d.message, d.partial) for d in made.finish("t")] == [("n", False)]


def test_the_end_of_the_run_completes_what_is_left_and_nothing_comes_after() -> None:
    made = begun()
    made.restore([Piece("old", 3, 10, "the end of it", step="before", kind="reasoning", audience="operator")])
    say(made, "a")
    assert [(d.message, d.attempt, d.text, d.partial, d.kind) for d in made.close()] == [
        ("old", 3, "the end of it", True, "reasoning"), ("m", 1, "a", True, "text"),
    ]  # fmt: skip
    made.begin("s", 2)
    say(made, "b", attempt=2)
    assert (fresh(made), made.close()) == ([], ())


def test_what_an_earlier_holder_left_is_superseded_and_not_published_again() -> None:
    made = Messages("run-1")
    made.restore([Piece("m", 1, 0, "left", step="s")])
    assert (fresh(made), made.is_kept) == ([], True)
    made.begin("s", 2)
    say(made, "anew", attempt=2)
    assert fresh(made) == [("m", 2, 0, "anew")]


def test_arguments_of_tools_are_shown_and_not_recorded() -> None:
    made = begun()
    made.append("s", 1, '{"a"', None, "tool_arguments")
    assert [piece.kind for piece in made.take_fresh()] == ["tool_arguments"]
    assert made.finish("s") == ()


@pytest.mark.parametrize("message", ["", "a\nb", "x" * 129, 7])
def test_a_name_must_be_one(message: str) -> None:
    with pytest.raises(ValueError, match="named by"):
        say(begun(), "x", message=message)


def test_what_is_no_text_or_of_no_kind_is_refused() -> None:
    made = begun()
    with pytest.raises(TypeError, match="not bytes"):
        made.append("s", 1, b"x", None, "text")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not 'thoughts'"):
        made.append("s", 1, "x", None, "thoughts")  # type: ignore[arg-type]


def test_a_name_belongs_to_one_step_and_one_kind() -> None:
    made = begun()
    made.begin("t", 1)
    say(made, "a")
    with pytest.raises(ValueError, match="another step's"):
        say(made, "b", step="t")
    with pytest.raises(ValueError, match="of kind 'text'"):
        made.append("s", 1, "c", "m", "reasoning")
    made.finish("s")
    with pytest.raises(ValueError, match="another step's"):
        say(made, "b", step="t")


def test_sizes_and_numbers_are_bounded() -> None:
    made = begun()
    say(made, "x" * (4 * 2**20))
    with pytest.raises(ValueError, match="more than 4194304 bytes"):
        say(made, "y")
    for number in range(m.MESSAGES_PER_ATTEMPT - 1):
        say(made, "x", message=f"n{number}")
    with pytest.raises(ValueError, match="at most 20 messages"):
        say(made, "x", message="one more")


def test_threads_may_add_at_once() -> None:
    made = begun()
    threads = [threading.Thread(target=say, args=(made, *["ab"] * 500)) for _ in range(4)]
    taken: list[str] = []
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        taken += [part for *_, part in fresh(made)]
    taken += [part for *_, part in fresh(made)]
    (data,) = made.finish("s")
    assert "".join(taken) == data.text == "ab" * 2000
