"""The server's metrics in the format of Prometheus, computed from its status."""

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

Status = dict[str, Any]
STATES = ("in", "late", "left out", "away", "revoked")


class StatusCollector(Collector):
    """Yields metrics of the status that `read` returns."""

    def __init__(self, read: Callable[[], Status]) -> None:
        self.read = read

    def collect(self) -> Iterable[Metric]:
        """Yield all metrics."""
        status = self.read()
        yield from _describe_run(status)
        yield from _describe_clients(status["clients"])
        yield from _describe_scores(status["curve"])
        yield from _describe_certificates(status["certificates"])


def write_metrics(read: Callable[[], Status]) -> bytes:
    """Return the text that Prometheus reads."""
    registry = CollectorRegistry()
    registry.register(StatusCollector(read))
    return generate_latest(registry)


def _describe_run(status: Status) -> Iterable[Metric]:
    facts = {name: str(status[name]) for name in ("version", "method", "config", "phase")}
    yield InfoMetricFamily("fedfm_run", "The run", value=facts)
    changed = datetime.fromisoformat(status["changed"]).timestamp()
    gauges = {
        "fedfm_healthy": ("1 while the server makes progress", float(status["healthy"])),
        "fedfm_round": ("Rounds that are done", status["round"]),
        "fedfm_rounds": ("Rounds of the run", status["rounds"]),
        "fedfm_round_seconds": ("Median of the last rounds", status["seconds_per_round"]),
        "fedfm_last_event_time_seconds": ("When something happened last", changed),
        "fedfm_epsilon": ("Privacy spent, against who sees only sums", status["epsilon"]),
        "fedfm_epsilon_server": ("Privacy spent, against the server", status["epsilon_server"]),
    }
    for name, (about, value) in gauges.items():
        if value is not None:
            yield GaugeMetricFamily(name, about, value=float(value))
    names = {"bytes_up": "from clients", "bytes_down": "to clients", "handshakes": "exchanged"}
    for name, about in names.items():
        yield CounterMetricFamily(f"fedfm_{name}", f"Sent {about}", value=status["traffic"][name])
    refused = len(status["refused"])
    yield GaugeMetricFamily("fedfm_refused", "Nodes refused since the start", value=refused)


def _describe_clients(clients: list[dict[str, Any]]) -> Iterable[Metric]:
    states = GaugeMetricFamily("fedfm_clients", "Clients by state", labels=["state"])
    for state in STATES:
        states.add_metric([state], sum(each["state"] == state for each in clients))
    yield states
    about = {
        "answered": "Rounds that a client is part of",
        "late": "Questions that a client did not answer in time",
        "left_out": "Answers of a client that were missing or not accepted",
    }
    for name, text in about.items():
        counter = CounterMetricFamily(f"fedfm_client_{name}", text, labels=["client"])
        for each in clients:
            counter.add_metric([each["name"]], each[name])
        yield counter


def _describe_scores(curve: list[dict[str, Any]]) -> Iterable[Metric]:
    """Yield the last value of every metric that the model was evaluated by."""
    scores = GaugeMetricFamily("fedfm_score", "The last evaluation", labels=["metric"])
    for name, value in find_scores(curve).items():
        scores.add_metric([name], float(value))
    yield scores


def find_scores(curve: list[dict[str, Any]]) -> dict[str, Any]:
    """Return accuracies, losses and further metrics of the last round that has them."""
    skip = {"round", "clients", "left_out", "seconds", "bytes_up", "bytes_down", "handshakes"}
    scored = [point for point in curve if "test_accuracy" in point]
    last = scored[-1] if scored else {}
    return {name: v for name, v in last.items() if name not in skip and v is not None}


def _describe_certificates(certificates: list[dict[str, Any]]) -> Iterable[Metric]:
    gauge = GaugeMetricFamily(
        "fedfm_certificate_expiry_time_seconds", "When a certificate expires", labels=["file"]
    )
    for each in certificates:
        gauge.add_metric([each["file"]], datetime.fromisoformat(each["expires"]).timestamp())
    yield gauge
