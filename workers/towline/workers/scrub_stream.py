"""Scrubbing a text that comes in pieces: no secret gets through because a boundary cuts it in two.

Promises that of what `Scrubber` takes out at most its first `LEAD_CHARS` come out before its replacement, however the
pieces are cut and wherever the text breaks off, and that a text which is nothing of the kind is not held back. So what
may be the beginning of something waits until it is known; of what is longer than `HELD_CHARS` only the replacement
comes. Leaves offsets and publishing to `messages`.
"""

import re
from typing import Final

from towline.workers import scrub_keyed
from towline.workers.scrub import LEAD_CHARS, MARKS, Scrubber
from towline.workers.scrub_keyed import SECRET

HELD_CHARS: Final = 4096
OWN_CHARS: Final = 200
"""How long a match of the operator's own expression may be to be found across pieces."""
_WORD: Final = re.compile(r"[!-~]+\Z")
_WORD_END: Final = re.compile(r"(?=[^!-~])")
_KEY: Final = "-----BEGIN "
_KEY_END: Final = re.compile(r"-----END [A-Z ]*PRIVATE KEY-----")
_KEY_END_CHARS: Final = 60
_WORDS_CHARS: Final = 16


class ScrubStream:
    """One text. `feed` gives what may leave, `flush` the rest."""

    def __init__(self, scrubber: Scrubber) -> None:
        self._scrubber = scrubber
        self._lead = ""
        """The last of what has left, as it came: a match may begin in it."""
        self._held = ""
        self._inside: re.Pattern[str] | None = None
        """What ends a secret that was replaced before its end."""

    def feed(self, text: str) -> str:
        """What may leave after `text` came."""
        self._held += text
        if self._inside is not None and not self._leave(self._inside):
            return ""
        keep_from = self._keep_from()
        if len(self._held) - keep_from <= HELD_CHARS:
            return self._let_go(keep_from)
        # Too long to wait for its end: if it is a secret so far, its rest must not come either.
        is_key = self._open_key() is not None
        clean = self._let_go(len(self._held))
        if clean.endswith(SECRET):
            self._inside = _KEY_END if is_key else _WORD_END
        return clean

    def flush(self) -> str:
        """The text is over: what is left of it."""
        if self._inside is not None:
            self._inside, self._held = None, ""
        return self._let_go(len(self._held), is_end=True)

    def _let_go(self, size: int, *, is_end: bool = False) -> str:
        """The first `size` characters that are held, clean."""
        before, ready = self._lead, self._held[:size]
        self._held = self._held[size:]
        self._lead = (before + ready)[-LEAD_CHARS:]
        clean = self._scrubber.text(before + ready)
        if is_end:
            clean = self._scrubber.end(clean)
        same = 0
        while same < min(len(before), len(clean)) and before[same] == clean[same]:
            same += 1
        return clean[same:]

    def _leave(self, end: re.Pattern[str]) -> bool:
        """Drop the rest of a secret that was replaced before its end; whether the end has come."""
        found = end.search(self._held)
        if found is None:
            self._held = self._held[-_KEY_END_CHARS:]  # the end may be cut in two as well
            return False
        self._held, self._lead, self._inside = self._held[found.end() :], "", None
        return True

    def _open_key(self) -> int | None:
        """Where a key begins that has not ended yet, counted from the lead on."""
        text = self._lead + self._held
        at = text.rfind(_KEY)
        return None if at < 0 or _KEY_END.search(text, at) else at

    def _keep_from(self) -> int:
        """Where in what is held begins what must wait."""
        text, lead = self._lead + self._held, len(self._lead)
        keep = len(text)
        if (key := self._open_key()) is not None:
            keep = min(keep, key)
        if (keyed := scrub_keyed.open_from(text)) is not None:
            keep = min(keep, keyed)
        if self._scrubber.has_own_pattern:
            keep = min(keep, max(0, len(text) - OWN_CHARS))
        if (word := _WORD.search(text)) is not None:
            begun = [at for mark in MARKS if (at := text.find(mark, word.start())) >= 0]
            keep = min([keep, *begun])
        small = text[-_WORDS_CHARS:].lower()
        for whole in (_KEY, *MARKS, *self._scrubber.literals, *self._scrubber.folders):
            keep = min(keep, len(text) - _begun(whole, text))
        for known in scrub_keyed.WORDS:
            keep = min(keep, len(text) - _begun(known, small))
        return max(0, self._scrubber.start_around(text, keep) - lead)


def _begun(whole: str, text: str) -> int:
    """With how many characters of `whole` the text ends; 0 where they are so few that they may leave."""
    return next((n for n in range(min(len(whole), len(text)), LEAD_CHARS, -1) if text.endswith(whole[:n])), 0)
