"""Secrets that are known by what stands before them: `API_KEY=…`, `Authorization: Bearer …`, `postgres://ana:…@db`.

Promises that of such a form only the value is taken out, so that people see what it was; that doing it twice is doing
it once; and that ordinary sentences about tokens and passwords stay: an assignment to a name in capitals and a header
count as they are, anything else only with a value that no word looks like. Leaves secrets that are known by their own
looks to `scrub`, and texts that come in pieces to `scrub_stream`.
"""

import re
from typing import Final

SECRET: Final = "[secret]"
WORDS: Final = (
    *("api_key", "api-key", "apikey", "access_key", "access-key", "accesskey", "private_key", "secret", "token"),
    *("passwd", "password", "passphrase", "credential", "authorization", "bearer", "://"),
)
"""In small letters: a text with none of these has none of the forms."""

_NAMES: Final = r"(?i:(?:api|access|private)[_-]?key|secret|token|passw(?:or)?d|passphrase|credential)"
_IS: Final = r"\\?[\"']?\s{0,2}[:=]\s{0,2}\\?[\"']?"
_SCHEME: Final = r"(?i:bearer|basic|token|digest|apikey)"
_PART: Final = r"[^\s\"'\\,;(){}\[\]<>]"
_MIXED: Final = rf"(?={_PART}{{0,255}}\d)(?={_PART}{{0,255}}[A-Za-z]){_PART}"

_ASSIGNED: Final = (
    r"(?:(?:API|ACCESS|PRIVATE)_?KEY|SECRET|TOKEN|PASSW(?:OR)?D|PASSPHRASE|CREDENTIAL)[A-Z0-9_]{0,32}=\\?[\"']?"
)
_FORMS: Final = tuple(
    re.compile(rf"({before})({value})")
    for before, value in (
        (
            _ASSIGNED,
            r"[^\s\"'\\]{6,}",
        ),
        (rf"(?i:authorization){_IS}{_SCHEME}\s{{1,2}}", r"[^\s\"'\\,;]{6,}"),
        (rf"(?:{_NAMES}|(?i:authorization))[A-Za-z0-9_-]{{0,32}}{_IS}", rf"{_MIXED}{{8,}}"),
        (r"(?i:bearer)\s{1,2}", r"(?=[\w.~+/=-]{0,255}\d)[\w.~+/=-]{16,}"),
        (r"://[^\s/:@\"']{0,64}:", r"[^\s/\"'\\]+(?=@)"),
    )
)
_OPEN: Final = re.compile(
    rf"(?:(?:{_NAMES}|(?i:authorization))[A-Za-z0-9_-]{{0,32}}"
    rf"(?:\\?[\"']?(?:\s{{0,2}}(?:[:=]\s{{0,2}}\\?[\"']?(?:{_SCHEME}\s{{0,2}})?[^\s\"']*)?)?)?"
    r"|(?i:bearer)(?:\s{0,2}[\w.~+/=-]*)"
    r"|://[^\s/\"']*)\Z"
)
"""A form whose value has not come, or not to its end."""
_CUT: Final = tuple(
    re.compile(rf"({before})({value})\Z")
    for before, value in (
        (
            _ASSIGNED,
            r"[^\s\"'\\]+",
        ),
        (rf"(?i:authorization){_IS}{_SCHEME}\s{{1,2}}", r"[^\s\"'\\,;]+"),
        (rf"(?:{_NAMES}|(?i:authorization))[A-Za-z0-9_-]{{0,32}}{_IS}", rf"{_MIXED}*"),
        (r"(?i:bearer)\s{1,2}", r"(?=[\w.~+/=-]{0,255}\d)[\w.~+/=-]+"),
        (r"://[^\s/:@\"']{0,64}:", r"(?!\d{0,5}\Z)[^\s/\"'\\@]+"),  # not the port of an address
    )
)


def may_hold(text: str) -> bool:
    """Whether any form could stand in `text`: a plain search, since nearly every text holds none."""
    small = text.lower()
    return any(word in small for word in WORDS)


def clean(text: str) -> str:
    """`text` with every value replaced."""
    if may_hold(text):
        for form in _FORMS:
            text = form.sub(_hide, text)
    return text


def clean_end(text: str) -> str:
    """`text`, which was broken off, with the value replaced that its end may be the beginning of."""
    if may_hold(text):
        for form in _CUT:
            text = form.sub(_hide, text)
    return text


def open_from(text: str) -> int | None:
    """Where a form begins that what follows `text` may still belong to."""
    found = _OPEN.search(text) if may_hold(text) else None
    return None if found is None else found.start()


def start_around(text: str, at: int) -> int:
    """Where the form around `at` begins; `at` where there is none."""
    if may_hold(text):
        for form in _FORMS:
            at = next((found.start() for found in form.finditer(text) if found.start() < at < found.end()), at)
    return at


def _hide(found: re.Match[str]) -> str:
    return found[1] + SECRET
