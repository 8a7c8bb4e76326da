"""Unfinished text as an application shows it: the fold of `delta` frames, over reconnects, attempts and holes.

Promises that `texts` holds, for each message that is not finished, what the server has sent of its newest attempt,
and that a finished one is gone: its whole text stands in its event. A frame that does not follow what is held (the
server was changed, or frames were dropped) begins the text there. Pure; feed it what `on_delta` and the stream give.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from towline.protocol.events import TERMINAL


class UnfinishedText(Struct):
    """What is known of one message. `offset` is above 0 where the beginning is gone."""

    message: str
    attempt: int
    offset: int
    text: str
    role: str
    kind: str
    step: str | None


class UnfinishedTexts:
    """The unfinished messages of one run, by name, in the order in which they began."""

    def __init__(self) -> None:
        self.texts: dict[str, UnfinishedText] = {}

    def receive_delta(self, frame: Mapping[str, Any]) -> UnfinishedText | None:
        """Takes a `delta` frame; the text it belongs to, or None if it is of an attempt that was superseded."""
        message, attempt, offset = str(frame["message"]), int(frame["attempt"]), int(frame["offset"])
        known = self.texts.get(message)
        if known is not None and attempt < known.attempt:
            return None
        if known is None or attempt > known.attempt or not known.offset <= offset <= known.offset + len(known.text):
            known = self.texts[message] = UnfinishedText(
                message=message,
                attempt=attempt,
                offset=offset,
                text="",
                role=str(frame.get("role", "assistant")),
                kind=str(frame.get("kind", "text")),
                step=frame.get("step"),
            )
        known.text = known.text[: offset - known.offset] + str(frame["text"])
        return known

    def receive_event(self, type_: str, data: Any) -> None:
        """Takes an event of the run: what it finishes is not unfinished any more."""
        if type_ in TERMINAL:
            self.texts.clear()
        elif not isinstance(data, Mapping):
            return
        elif type_ == "message.completed":
            self.texts.pop(data.get("message", ""), None)
        elif type_ in ("tool.finished", "tool.failed"):
            step = data.get("step")
            self.texts = {name: text for name, text in self.texts.items() if text.step is None or text.step != step}
