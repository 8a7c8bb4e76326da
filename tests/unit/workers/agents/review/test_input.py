"""What a start of `review` takes: one source, named in one way, by the type and by the schema alike."""

from typing import Any

import msgspec
import pytest

from towline.protocol import schemas
from towline.protocol.errors import ProblemError
from towline.workers.agents.review.models import ReviewInput
from towline.workers.agents.review.workflow import review


@pytest.mark.parametrize("source", [{"path": "/src"}, {"upload": "upl_0123456789ABCDEFGHJKMNPQRS"}])
def test_a_path_or_an_upload(source: dict[str, Any]) -> None:
    schemas.check({"source": source}, review.input_schema(), field="input")
    assert msgspec.to_builtins(msgspec.convert({"source": source}, ReviewInput)) == {"source": source}


@pytest.mark.parametrize(
    "source", [{}, {"path": "/src", "upload": "upl_1"}, {"path": None}, {"upload": "other"}, {"upload": 1}, None]
)
def test_neither_both_or_something_else_is_refused(source: Any) -> None:
    with pytest.raises(ProblemError):
        schemas.check({"source": source}, review.input_schema(), field="input")
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"source": source}, ReviewInput)
