"""Random lives of a message: lost pieces, holes, attempts, readers that come late or take nothing for a while.

Producer, store, reader and client are the real machines; between them stands a line that loses and repeats. What
must hold at every moment: what is shown is a part of what was said, without a gap, of the newest attempt that was
heard of. And once the store has the text and the reader has looked: all of it.
"""

import random

import pytest
from msgspec.structs import replace

from tests.support.soak import SOAK
from towline.protocol.client.texts import UnfinishedTexts
from towline.protocol.codec import Entry, EntryMeta, encode_envelope
from towline.protocol.deltas import STORED_EVERY_MS, DeltaLane, Piece, ReadTexts, entry_of_message
from towline.protocol.events import Actor
from towline.workers.messages import Messages

AGENT = Actor("agent", "wf:talk")
WORDS = ("Hello", " ", "👩‍👩‍👧‍👦", "e\u0301", "שלום", "\n", "\u2028", "\ud83d", "\udc4d", "x" * 5_000, "\x00")
NAMES = ("m1", "m2")


class Life:
    """One run with one step of several attempts, one reader and its client."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now_ms = 0
        self.attempt = 1
        self.producer = Messages("run-1")
        self.producer.begin("s", 1)
        self.said: dict[tuple[str, int], str] = {}
        self.kept: dict[str, Piece] = {}
        self.join()

    def join(self) -> None:
        """A reader comes, for the first time or again; its client keeps what it shows."""
        self.lane = DeltaLane()
        if not hasattr(self, "client"):
            self.client = UnfinishedTexts()
        self.ends: dict[tuple[str, int], int] = {}

    def say(self) -> None:
        self.producer.append("s", self.attempt, self.random.choice(WORDS), self.random.choice(NAMES), "text")

    def publish(self) -> None:
        pieces = self.producer.take_fresh()
        for piece in pieces:
            key = (piece.message, piece.attempt)
            assert piece.offset == len(self.said.get(key, ""))
            self.said[key] = self.said.get(key, "") + piece.text
        heard = [piece for piece in pieces if self.random.random() < 0.7]
        if heard and self.random.random() < 0.2:
            heard.append(self.random.choice(heard))
        self.lane.receive_pieces(heard, self.now_ms)

    def keep(self) -> None:
        self.publish()
        for text in self.producer.take_texts():
            self.kept[text.message] = text

    def retry(self) -> None:
        self.publish()
        self.producer.stop("s")
        self.attempt += 1
        self.producer.begin("s", self.attempt)

    def pass_time(self) -> None:
        self.now_ms += self.random.randrange(2 * STORED_EVERY_MS)

    def read(self, most: int = 1_000) -> None:
        """The reader does what the machine says, and the client shows it."""
        for _ in range(most):
            action = self.lane.next_action(self.now_ms)
            if action is None:
                return
            if isinstance(action, ReadTexts):
                self.lane.receive_texts(self.kept.values(), self.now_ms)
                continue
            piece = action.piece
            key = (piece.message, piece.attempt)
            assert action.truncated or piece.offset == self.ends.get(key, 0)
            self.ends[key] = piece.end
            known = self.client.receive_delta({name: getattr(piece, name) for name in piece.__struct_fields__})
            if known is not None:  # the client may have seen a later attempt before its reader came anew
                said = self.said[known.message, known.attempt]
                assert said[known.offset : known.offset + len(known.text)] == known.text

    def read_a_little(self) -> None:
        self.read(most=1)

    def settle(self) -> None:
        """The store has all of it, and the reader has had the time to look."""
        self.keep()
        self.lane.receive_loss(self.now_ms)
        self.now_ms += 2 * STORED_EVERY_MS
        self.read()
        for text in self.kept.values():
            shown = self.client.texts[text.message]
            if self.producer._open[text.message].attempt > text.attempt:
                continue  # another attempt has begun, and has no whole code point to keep yet
            said = self.said[text.message, text.attempt]
            assert (shown.attempt, shown.text) == (text.attempt, said[shown.offset :])

    def finish(self) -> None:
        whole = {data.message: data for data in self.producer.finish("s")}
        for name, data in whole.items():
            shown = self.client.texts.get(name)
            assert data.text is not None
            if shown is None or shown.attempt < data.attempt:
                assert data.text == "\ufffd"  # half a pair, which waited for the other half and was not shown
            else:
                assert data.text[shown.offset :] in (shown.text, shown.text + "\ufffd")
            short = replace(data, text="")  # a text over the bound of an event goes to a payload
            made = entry_of_message(short, AGENT)
            raw = b'{"seq":1,"ts":"","cause":null,' + encode_envelope(made)
            self.lane.receive_sent([Entry(1, 1, raw, EntryMeta())])
            self.client.receive_event("message.completed", {"message": name})
        self.now_ms += 10 * STORED_EVERY_MS
        self.lane.receive_pieces(self.kept.values(), self.now_ms)
        self.lane.receive_loss(self.now_ms)
        self.read()
        assert self.client.texts == {}


@pytest.mark.parametrize("seed", range(2_000 if SOAK else 200))
def test_what_is_shown_is_what_was_said(seed: int) -> None:
    life = Life(seed)
    steps = [life.say] * 6 + [life.publish] * 4 + [life.read, life.read_a_little, life.pass_time] * 2
    steps += [life.keep, life.retry, life.join]
    for _ in range(60):
        life.random.choice(steps)()
    life.settle()
    life.finish()
