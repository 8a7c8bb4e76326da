"""Metrics: what is counted is shown, by words of closed lists, and where it is to be served."""

import socket

import httpx

from towline.gateway.metrics import Metrics, served
from towline.gateway.pressure import Level, Sample


def test_what_is_counted_is_shown() -> None:
    metrics = Metrics()
    metrics.count_open(lambda: 7, lambda: 3)
    metrics.refused("rate_limited")
    metrics.closed(4505)
    metrics.sent(5, replay=False)
    metrics.deltas += 1
    metrics.handed_on(0.002)
    metrics.reached_store()
    metrics.reached_store()
    metrics.sampled(Sample(lag_ms=20, buffered_bytes=99, store_ms=3), Level.CREATES)
    metrics.subscribed()
    metrics.subscribed()
    metrics.unsubscribed()
    text = metrics.text().decode()
    for line in (
        "towline_sockets 7.0",
        "towline_runs_followed 3.0",
        "towline_subscriptions 1.0",
        'towline_refusals_total{code="rate_limited"} 1.0',
        'towline_closes_total{code="4505"} 1.0',
        'towline_events_sent_total{kind="live"} 5.0',
        "towline_deltas_sent_total 1.0",
        "towline_buffered_bytes 99.0",
        "towline_pressure_level 3.0",
        "towline_store_seconds_count 1.0",
        "towline_loop_lag_seconds_count 1.0",
        "towline_hub_lag_seconds_count 1.0",
        "towline_store_reconnects_total 1.0",
    ):
        assert line in text.splitlines()
    metrics.unsubscribed()
    assert "towline_subscriptions 0.0" in metrics.text().decode().splitlines()


def test_gateways_do_not_count_for_each_other() -> None:
    one, other = Metrics(), Metrics()
    one.refused("internal")
    assert 'code="internal"} 0.0' in other.text().decode()


def test_the_numbers_may_be_served_elsewhere() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with served(Metrics(), ("127.0.0.1", port)):
        assert "towline_sockets" in httpx.get(f"http://127.0.0.1:{port}/metrics").text
    with socket.create_server(("127.0.0.1", port)):
        pass  # the address is free again
