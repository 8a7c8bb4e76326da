"""The fold of `delta` frames into what an application shows."""

from typing import Any

from towline.protocol.client.texts import UnfinishedTexts


def frame(offset: int, text: str, **more: Any) -> dict[str, Any]:
    return {"op": "delta", "run": "r", "message": "m", "attempt": 1, "offset": offset, "text": text, **more}


def shown(texts: UnfinishedTexts) -> dict[str, str]:
    return {name: text.text for name, text in texts.texts.items()}


def test_text_grows_and_what_comes_again_after_a_reconnect_replaces_itself() -> None:
    texts = UnfinishedTexts()
    texts.receive_delta(frame(0, "Hel", role="assistant", kind="reasoning", step="s"))
    known = texts.receive_delta(frame(3, "lo 👋"))
    assert known is not None
    assert (known.text, known.kind, known.step) == ("Hello 👋", "reasoning", "s")
    texts.receive_delta(frame(0, "Hello 👋 you"))
    assert shown(texts) == {"m": "Hello 👋 you"}


def test_a_larger_attempt_replaces_and_a_smaller_one_is_dropped() -> None:
    texts = UnfinishedTexts()
    texts.receive_delta(frame(0, "first"))
    texts.receive_delta(frame(0, "second", attempt=2))
    assert texts.receive_delta(frame(5, "!")) is None
    assert shown(texts) == {"m": "second"}


def test_a_truncated_text_begins_where_it_says() -> None:
    texts = UnfinishedTexts()
    texts.receive_delta(frame(0, "beginning"))
    texts.receive_delta(frame(1000, "the end", truncated=True))
    known = texts.receive_delta(frame(1007, "."))
    assert known is not None
    assert (known.offset, known.text) == (1000, "the end.")


def test_events_finish_texts() -> None:
    texts = UnfinishedTexts()
    for name in "abc":
        texts.receive_delta(frame(0, "x", message=name, step=f"step-{name}"))
    texts.receive_event("message.completed", {"message": "a"})
    texts.receive_event("tool.finished", {"step": "step-b"})
    texts.receive_event("progress.noted", None)
    assert shown(texts) == {"c": "x"}
    texts.receive_event("run.cancelled", {})
    assert shown(texts) == {}
