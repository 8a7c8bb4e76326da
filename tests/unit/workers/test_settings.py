"""Settings of a worker: read once, refused by name."""

from pathlib import Path

import pytest

from towline.workers.settings import WorkerSettingsError, from_environment

BASE = {"TOWLINE_STORE_URL": "unix:///s", "TOWLINE_DATA": "/d"}


def test_the_environment_names_what_a_worker_needs_and_arguments_win() -> None:
    settings = from_environment({**BASE, "TOWLINE_WORKER_SLOTS": "7", "TOWLINE_WORKER_DRAIN_S": "0"}, slots=9)
    assert (settings.store_url, settings.payloads, settings.slots, settings.drain_s) == (
        "unix:///s",
        Path("/d/payloads"),
        9,
        0,
    )
    assert from_environment(BASE).name != from_environment(BASE).name


def test_an_object_store_holds_payloads_instead_of_the_data_folder() -> None:
    assert from_environment({**BASE, "TOWLINE_PAYLOADS_URL": "gs://bucket"}).payloads == "gs://bucket"


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({**BASE, "TOWLINE_PAYLOADS_URL": "bucket"}, "TOWLINE_PAYLOADS_URL='bucket'"),
        ({}, "TOWLINE_STORE_URL is not set"),
        ({"TOWLINE_STORE_URL": "unix:///s"}, "TOWLINE_DATA is not set"),
        ({**BASE, "TOWLINE_WORKER_SLOT": "1"}, "TOWLINE_WORKER_SLOT is no setting"),
        ({**BASE, "TOWLINE_WORKER_SLOTS": "many"}, "TOWLINE_WORKER_SLOTS='many'"),
        ({**BASE, "TOWLINE_WORKER_SLOTS": "0"}, "too small"),
        ({**BASE, "TOWLINE_WORKER_RENEW_MS": "5000"}, "twice as long"),
    ],
)
def test_what_is_missing_or_wrong_is_named(environment: dict[str, str], said: str) -> None:
    with pytest.raises(WorkerSettingsError, match=said):
        from_environment(environment)
