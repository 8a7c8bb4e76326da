"""What people hand to a run: uploads that a value names, and an input that is too large for the log.

    given = await take(…)      the bytes are the run's to name: durable, by their content
    … the script that writes `given.side` and names `given.private` …
    await settle(…)            the uploads are nobody else's any more

Promises that a run which names bytes can read them, that only its uploader hands an upload on, and that a start which
is refused leaves the upload as it was. Two runs that take one upload in the same instant both get its bytes.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from towline.protocol.errors import ProblemError, problem
from towline.protocol.ids import is_upload_ref
from towline.protocol.limits import PRIVATE_BYTES, UPLOADS_PER_VALUE
from towline.protocol.store.payloads import MissingPayload, Payloads
from towline.protocol.store.spilling import pointer_to
from towline.protocol.store.uploads import Upload, Uploads

_PREFIX: Final = "upl_"
UPLOAD_PREFIX: Final = "u|"
"""How the side fields of a run begin that say what it was given."""


class GivenUpload(Struct, frozen=True):
    """An upload as the run that took it knows it, in its side field."""

    sha256: str
    size: int
    media_type: str


class Given(Struct, frozen=True):
    """What the creating script writes. `input_ref`: the payload that holds the input, if it is too large."""

    private: bytes
    input_ref: str | None
    side: Mapping[str, str]
    uploads: Mapping[str, Upload]


def upload_field(ref: str) -> str:
    """The side field of a run that says what an upload was."""
    return f"{UPLOAD_PREFIX}{ref}"


def given_upload(text: str) -> GivenUpload:
    """Reads the side field of an upload."""
    return msgspec.json.decode(text, type=GivenUpload)


def uploads_in(value: Any) -> list[str]:
    """The refs of uploads that a JSON value names: as `upload`, or anywhere as a text of their form."""
    return list(dict.fromkeys(_named(value, is_upload=False)))


def _named(value: Any, *, is_upload: bool) -> Iterator[str]:
    match value:
        case str():
            if is_upload_ref(value) or (is_upload and value.startswith(_PREFIX)):
                yield value
        case list():
            for item in value:
                yield from _named(item, is_upload=is_upload)
        case dict():
            for name, item in value.items():
                yield from _named(item, is_upload=name == "upload")
        case _:
            return


async def take_input(
    store: Uploads, payloads: Payloads, value: Any, *, subject: str, run: str, field: str = "input"
) -> Given:
    """Makes what `value` needs readable for `run`.

    Raises `ProblemError`: `not_found` for an upload that is not there, is another's, or was taken by another run.
    """
    private = msgspec.json.encode({"input": value})
    input_ref = None
    uploads: dict[str, Upload] = {}
    side: dict[str, str] = {}
    refs = uploads_in(value)
    if len(refs) > UPLOADS_PER_VALUE:
        raise problem(
            "bad_request", f"At most {UPLOADS_PER_VALUE} uploads are taken at a time.", field=field, expected="fewer"
        )
    for ref in refs:
        uploads[ref] = upload = await _usable(store, ref, subject, run, field)
        try:
            await payloads.of(run).adopt_upload(ref, upload.sha256)
        except MissingPayload:
            raise _no_upload(field) from None
        side[upload_field(ref)] = msgspec.json.encode(
            GivenUpload(upload.sha256, upload.size, upload.media_type)
        ).decode()
    if len(private) > PRIVATE_BYTES:
        input_ref = f"pay_{await payloads.of(run).put(msgspec.json.encode(value))}"
        private = pointer_to(await payloads.of(run).put(private))
    return Given(private, input_ref, side, uploads)


async def settle(store: Uploads, payloads: Payloads, given: Given, run: str) -> None:
    """`run` stands: what it took is nobody else's. What fails here is left to the end of the upload."""
    for ref, upload in given.uploads.items():
        await store.give_upload(ref, upload, run)
        await payloads.remove_upload(ref)


async def _usable(store: Uploads, ref: str, subject: str, run: str, field: str) -> Upload:
    upload = await store.upload(ref) if is_upload_ref(ref) else None
    if upload is None or upload.subject != subject or upload.run not in (None, run):
        raise _no_upload(field)
    return upload


def _no_upload(field: str) -> ProblemError:
    return problem(
        "not_found",
        "You have no such upload: it has ended, a run has taken it, or it never was. Send the bytes again.",
        field=field,
    )
