"""Scrubbing: what must not be in a log is taken out on the worker, before anything is appended or published.

What is replaced, wherever it stands in a text, a list, a key or a value of any event, published value or delta:

    a secret of this worker, plain, percent-encoded or in base64    [secret]
    what looks like a key (well-known shapes), or matches the
      expression in TOWLINE_WORKER_SCRUB                            [secret]
    the value of an assignment to a name like API_KEY, of a
      header like Authorization, the password of a URL              [secret]
    this machine's folders: allowed roots, the working folder,
      the home and the data folder; what lies below keeps its
      place: /home/ana/x/a.py -> [path]/x/a.py                      [path]

Promises that scrubbing twice is scrubbing once, that ids, hashes and step names stay as they are, and that the digest
of an approval is that of the scrubbed proposal, which is what people are shown. What only history replay reads is not
touched: it must come out as it went in. A secret shorter than `SHORTEST` is no secret. Leaves contents of artifacts
to their makers.
"""

import base64
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from towline.protocol import event_data as d
from towline.protocol.approvals import digest_of
from towline.protocol.codec import NewEntry
from towline.protocol.source_paths import allowed_roots
from towline.protocol.store.api import CommandOutcome
from towline.workers import scrub_keyed
from towline.workers.commits import AttemptFailed, Commit, Outcome
from towline.workers.decisions import Published
from towline.workers.scrub_keyed import SECRET
from towline.workers.secrets import know_all, known_values

T = TypeVar("T")
PATH: Final = "[path]"
SHORTEST: Final = 6
LEAD_CHARS: Final = 3
"""Of what is taken out of a text in pieces, so many characters may have left before that was known."""
_IDS: Final = frozenset({"step", "artifact", "sha256", "request", "digest", "timer", "command_id", "message", "id"})
"""Members of an event's data that name things: texts that happen to look alike must not change them."""

_SHAPES: Final = (
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?:.*?-----END [A-Z ]*PRIVATE KEY-----|.*\Z)",
    r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{8,}",
    r"\b(?:sk|pk|rk)[-_](?=[A-Za-z_-]*\d)[A-Za-z0-9_-]{16,}",
    r"\bgh[pousr]_[A-Za-z0-9]{20,}",
    r"\bgithub_pat_\w{20,}",
    r"\bglpat-[\w-]{16,}",
    r"\bxox[abeprs]-[\w-]{10,}",
    r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",
    r"\bAIza[\w-]{30,}",
    r"\bhf_[A-Za-z0-9]{20,}",
    r"\bnpm_[A-Za-z0-9]{30,}",
)
_CUT_SHAPES: Final = re.compile(
    r"(?:\b(?:sk|pk|rk)[-_](?=[A-Za-z_-]*\d)[A-Za-z0-9_-]+"
    r"|\beyJ[\w-]{8,}(?:\.[\w-]*){0,2}"
    r"|\b(?:gh[pousr]_|github_pat_|glpat-|xox[abeprs]-|AKIA|ASIA|AIza|hf_|npm_)(?=[A-Za-z_-]*\d)[\w-]{4,})\Z"
)
"""The shapes, where a text breaks off in the middle of one. What has no digit yet may be a word."""

MARKS: Final = (
    *("PRIVATE KEY", "eyJ", "sk-", "sk_", "pk-", "pk_", "rk-", "rk_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_"),
    *("github_pat_", "glpat-", "xox", "AKIA", "ASIA", "AIza", "hf_", "npm_"),
)
"""A text with none of these has none of the shapes."""


class Scrubber:
    """Takes out what must not be in a log. `secrets` gives the values to take out, as they are now."""

    def __init__(
        self,
        *,
        secrets: Callable[[], frozenset[str]] = known_values,
        folders: Iterable[str] = (),
        pattern: str = "",
    ) -> None:
        """Raises `ValueError` for a pattern that is no regular expression, or that matches nothing at all."""
        self._secrets = secrets
        self._known: frozenset[str] | None = None
        self._literals: tuple[str, ...] = ()
        self._shapes = re.compile("|".join(f"(?:{shape})" for shape in _SHAPES), re.DOTALL)
        self._own = _compiled(pattern) if pattern else None
        self.folders = tuple(sorted({f.rstrip("/") for f in folders if len(f.rstrip("/")) > 1}, key=len, reverse=True))
        names = "|".join(re.escape(folder) for folder in self.folders)
        self._paths = re.compile(rf"(?<![\w.~-])(?:{names})(?![\w.-])") if names else None

    @property
    def literals(self) -> tuple[str, ...]:
        """Every secret in every form that is taken out, longest first."""
        values = self._secrets()
        if values is not self._known:
            self._known = values
            forms = {form for value in values if len(value) >= SHORTEST for form in _forms(value)}
            self._literals = tuple(sorted(forms, key=len, reverse=True))
        return self._literals

    @property
    def has_own_pattern(self) -> bool:
        """Whether an expression of the operator is looked for, which may reach over spaces."""
        return self._own is not None

    def text(self, text: str) -> str:
        """`text` without what must not be in a log."""
        for literal in self.literals:
            if literal in text:
                text = text.replace(literal, SECRET)
        # A plain search first: nearly every text holds nothing of the kind, and expressions are slow.
        if any(mark in text for mark in MARKS):
            text = self._shapes.sub(SECRET, text)
        text = scrub_keyed.clean(text)
        if self._own is not None:
            text = self._own.sub(lambda match: SECRET if match[0] else "", text)
        if self._paths is not None and any(folder in text for folder in self.folders):
            text = self._paths.sub(PATH, text)
        return text

    def end(self, text: str) -> str:
        """`text`, scrubbed and broken off, without what its last characters may be the beginning of."""
        for literal in self.literals:
            for size in range(min(len(literal) - 1, len(text)), LEAD_CHARS, -1):
                if text.endswith(literal[:size]):
                    return text[:-size] + SECRET
        return scrub_keyed.clean_end(_CUT_SHAPES.sub(SECRET, text))

    def start_around(self, text: str, at: int) -> int:
        """Where the secret around `at` begins that is known by its looks; `at` where there is none."""
        if any(mark in text for mark in MARKS):
            at = next((found.start() for found in self._shapes.finditer(text) if found.start() < at < found.end()), at)
        return scrub_keyed.start_around(text, at)

    def value(self, value: Any) -> Any:
        """A plain JSON value, keys and all."""
        match value:
            case str():
                return self.text(value)
            case list():
                return [self.value(item) for item in value]
            case dict():
                return {self.text(key): self.value(item) for key, item in value.items()}
            case _:
                return value

    def json(self, raw: bytes) -> bytes:
        """A JSON text."""
        value = msgspec.json.decode(raw)
        clean = self.value(value)
        return raw if clean == value else msgspec.json.encode(clean)

    def data(self, data: T) -> T:
        """The data of an event."""
        plain = msgspec.json.decode(msgspec.json.encode(data))
        clean = {name: value if name in _IDS else self.value(value) for name, value in plain.items()}
        if clean == plain:
            return data
        made = msgspec.convert(clean, type(data))
        if isinstance(made, d.ApprovalRequested) and made.proposal is not None:
            return replace(made, digest=digest_of(made.request, made.proposal, made.questions))
        return made

    def entry(self, entry: NewEntry) -> NewEntry:
        """An entry; its private part stays."""
        clean = self.data(entry.data)
        return entry if clean is entry.data else replace(entry, data=clean)

    def outcome(self, outcome: Outcome) -> Outcome:
        """What became of an attempt, before the code hears of it: history replay reads the error from the log."""
        if isinstance(outcome, AttemptFailed):
            error = outcome.error
            return replace(outcome, error=replace(error, message=self.text(error.message)))
        return outcome

    def commit(self, commit: Commit) -> Commit:
        """All that a commit makes public."""
        return replace(
            commit,
            entries=tuple(self.entry(entry) for entry in commit.entries),
            opened=tuple(self.data(opened) for opened in commit.opened),
            outcomes=tuple(
                CommandOutcome(told.subject, told.command_id, self.json(told.receipt.encode()).decode())
                for told in commit.outcomes
            ),
            published={
                name: Published(self.json(made.value), made.audience) for name, made in commit.published.items()
            },
        )


def for_worker(pattern: str, payloads: Path | str, environment: Mapping[str, str] = os.environ) -> Scrubber:
    """The scrubber of a worker with this folder (or URL) of payloads. Raises `ValueError` for a bad pattern."""
    know_all(environment)
    named = [*allowed_roots(environment), os.getcwd(), str(Path.home())]
    if isinstance(payloads, Path):
        named.append(str(payloads.absolute().parent))
    return Scrubber(folders=[form for folder in named for form in (folder, os.path.realpath(folder))], pattern=pattern)


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
    if compiled.fullmatch("") is not None:
        raise ValueError(f"{pattern!r} matches nothing at all, so it would match everywhere")
    return compiled


def _forms(value: str) -> set[str]:
    """A secret as it may stand in a text: as it is, percent-encoded, and in base64 at each of three places."""
    forms = {value, quote(value, safe="")}
    raw = value.encode()
    for shift in range(3):
        # What an unknown neighbour would change at the edges is left off.
        whole = base64.b64encode(b"\0" * shift + raw)[(0, 2, 3)[shift] :].rstrip(b"=").decode()
        core = whole[: len(whole) - (0 if (shift + len(raw)) % 3 == 0 else 1)]
        if len(core) >= SHORTEST + 2:
            forms |= {core, core.translate(str.maketrans("+/", "-_"))}
    return forms
