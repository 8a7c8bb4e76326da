"""What the gateway counts about itself, in the form that Prometheus reads.

Promises that no label and no name carries a subject, a run, an address or anything that a client sent: labels are
words of closed lists. Each gateway has its own registry, so that several fit into one process. By a setting the
numbers are served at another address than the gateway's own.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, start_http_server
from prometheus_client.metrics_core import CounterMetricFamily
from prometheus_client.registry import Collector

from towline.gateway.pressure import Level, Sample
from towline.protocol.errors import CODES

MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)


class Metrics:
    """The numbers of one gateway. Counting is cheap: no call here waits or allocates a label anew."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._sockets = Gauge("towline_sockets", "Sockets open", registry=self.registry)
        self._runs = Gauge("towline_runs_followed", "Runs that someone watches here", registry=self.registry)
        self._subscriptions = Gauge("towline_subscriptions", "Subscriptions, streams included", registry=self.registry)
        self._level = Gauge(
            "towline_pressure_level", "What is shed: " + ", ".join(f"{n.value} {n.name.lower()}" for n in Level),
            registry=self.registry,
        )  # fmt: skip
        self._buffered = Gauge(
            "towline_buffered_bytes", "Sent to sockets that lag and not yet taken", registry=self.registry
        )
        self._lag = Histogram(
            "towline_loop_lag_seconds", "How late the event loop is", buckets=_SECONDS, registry=self.registry
        )
        self._store = Histogram(
            "towline_store_seconds", "How long the store takes for a small call", buckets=_SECONDS,
            registry=self.registry,
        )  # fmt: skip
        self._hub = Histogram(
            "towline_hub_lag_seconds", "From the notice of an event to its hand-over to watchers", buckets=_SECONDS,
            registry=self.registry,
        )  # fmt: skip
        self.live_events = 0
        self.replayed_events = 0
        self.deltas = 0
        """Plain numbers, because they are counted for every event and every socket."""
        self.registry.register(_Sent(self))
        refusals = Counter("towline_refusals", "Problems answered, by code", ["code"], registry=self.registry)
        self._refusals = {code: refusals.labels(code) for code in CODES}
        self._reconnects = Counter(
            "towline_store_reconnects", "Losses of the connection for notices that were mended", registry=self.registry
        )
        self._has_store = False
        self._closes = Counter("towline_closes", "Sockets that we closed, by code", ["code"], registry=self.registry)

    def sent(self, count: int, *, replay: bool) -> None:
        """So many events were sent to one peer."""
        if replay:
            self.replayed_events += count
        else:
            self.live_events += count

    def refused(self, code: str) -> None:
        """A problem was answered."""
        self._refusals[code].inc()

    def closed(self, code: int) -> None:
        """A socket was closed by us; `code` is one of our own list."""
        self._closes.labels(str(code)).inc()

    def sampled(self, sample: Sample, level: Level) -> None:
        """What the gauge of pressure found."""
        self._lag.observe(sample.lag_ms / 1000)
        self._store.observe(sample.store_ms / 1000)
        self._buffered.set(sample.buffered_bytes)
        self._level.set(level)

    def reached_store(self) -> None:
        """The connection for notices was made, for the first time or anew."""
        if self._has_store:
            self._reconnects.inc()
        self._has_store = True

    def handed_on(self, after_s: float) -> None:
        """What the hub gathered was handed to its followers so long after it came."""
        self._hub.observe(after_s)

    def subscribed(self) -> None:
        """There is one subscription more."""
        self._subscriptions.inc()

    def unsubscribed(self) -> None:
        """There is one less."""
        self._subscriptions.dec()

    def count_open(self, sockets: Callable[[], int], runs: Callable[[], int]) -> None:
        """Where the numbers of open sockets and of followed runs are asked when someone reads."""
        self._sockets.set_function(sockets)
        self._runs.set_function(runs)

    def text(self) -> bytes:
        """All numbers, as Prometheus reads them."""
        return generate_latest(self.registry)


class _Sent(Collector):
    """Shows the plain numbers of `Metrics`."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[CounterMetricFamily]:
        """See prometheus_client."""
        events = CounterMetricFamily("towline_events_sent", "Events sent to sockets and streams", labels=["kind"])
        events.add_metric(["live"], self._metrics.live_events)
        events.add_metric(["replay"], self._metrics.replayed_events)
        yield events
        yield CounterMetricFamily("towline_deltas_sent", "Deltas sent", value=self._metrics.deltas)


@contextmanager
def served(metrics: Metrics, bind: tuple[str, int] | None) -> Iterator[None]:
    """While inside, the numbers are served at `bind`, if there is one. Raises `OSError` when it is taken."""
    if bind is None:
        yield
        return
    host, port = bind
    server, thread = start_http_server(port, host, metrics.registry)
    assert isinstance(thread, threading.Thread)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
