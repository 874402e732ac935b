"""The numbers of a store as Prometheus reads them.

`StoreCollector` turns a snapshot (`store.stats()`) into metric families each time it is asked;
nothing is counted twice and nothing is kept here. Labels are of small sets: containers (summed
above CONTAINERS_MAX), operations and error kinds of the provider, states, parts of the engine. No
names of segments or objects, no sentences.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from segmentstore.metric_names import (
    CLUSTER_TIMES,
    CONTAINER_METRICS,
    LEFT_OUT,
    OPERATION_METRICS,
    PREFIX,
    STORE_METRICS,
    MetricName,
    by_path,
)
from tier2.request_statistics import LATENCY_BOUNDS_S

CONTAINERS_MAX = 256
"""More containers than this are summed up under `container="all"`."""
ERROR_KINDS_MAX = 32
"""More kinds of errors of one operation than this are counted together as `other`."""

Snapshot = Mapping[str, Any]

_STORE = by_path(STORE_METRICS)
_CONTAINER = by_path(CONTAINER_METRICS)


class StoreCollector(Collector):
    """Asks for a snapshot at each collection.

    `take` raising TimeoutError or RuntimeError shows as `segmentstore_up` 0.
    """

    def __init__(self, take: Callable[[], Snapshot]) -> None:
        self._take = take

    def collect(self) -> Iterator[Metric]:
        """All families of one snapshot."""
        up = GaugeMetricFamily(
            PREFIX + "up",
            "1: the store answered; 0: its event loop did not answer in time, or is closed.",
        )
        try:
            snapshot = self._take()
        except (TimeoutError, RuntimeError):
            up.add_metric([], 0)
            yield up
            return
        up.add_metric([], 1)
        yield up
        yield from families(snapshot)


def metrics_text(snapshot: Snapshot) -> bytes:
    """A snapshot in Prometheus' text format. O(containers)."""
    return generate_latest(registry(lambda: snapshot))


def registry(take: Callable[[], Snapshot]) -> CollectorRegistry:
    """A registry with a StoreCollector and nothing else."""
    result = CollectorRegistry()
    result.register(StoreCollector(take))
    return result


def families(snapshot: Snapshot) -> Iterator[Metric]:
    """The metric families of a snapshot."""
    info = GaugeMetricFamily(PREFIX + "info", "Always 1; names the store.", labels=("store_id",))
    info.add_metric([str(snapshot["store_id"])], 1)
    yield info
    findings = len(snapshot["health"])
    yield GaugeMetricFamily(
        PREFIX + "healthy",
        "1 while nothing is wrong; stats()['health'] says what is.",
        int(not findings),
    )
    yield GaugeMetricFamily(PREFIX + "health_findings", "How many things are wrong.", findings)
    for path, value in _numbers(
        {key: part for key, part in snapshot.items() if key not in LEFT_OUT}
    ):
        if path not in LEFT_OUT:
            family = _family(_STORE.get(path) or _unnamed(path), ())
            family.add_metric([], value)
            yield family
    turns = GaugeMetricFamily(
        PREFIX + "longest_turn_seconds",
        "How long a part has held the event loop without a break, at most.",
        labels=("part",),
    )
    for part, seconds in snapshot["longest_turn_s"].items():
        turns.add_metric([part], seconds)
    yield turns
    if snapshot["wire"] is not None:
        refusals = CounterMetricFamily(
            PREFIX + "wire_refusals", "Refused over the wire, by reason.", labels=("reason",)
        )
        for reason, count in _bounded(snapshot["wire"]["refusals"]):
            refusals.add_metric([reason], count)
        yield refusals
    if snapshot["controller"] is not None:
        refusals = CounterMetricFamily(
            PREFIX + "controller_refusals",
            "Calls to the Controller that were refused or failed, by method and reason.",
            labels=("reason",),
        )
        for reason, count in _bounded(snapshot["controller"]["refusals"]):
            refusals.add_metric([reason], count)
        yield refusals
    if snapshot["cluster"] is not None:
        yield from _move_families(snapshot["cluster"])
    yield from _operation_families(snapshot["tier2"]["operations"])
    yield _by_state(snapshot["container_states"])
    yield from _container_families(snapshot["containers"])


# --- the provider ---------------------------------------------------------------------------------


def _operation_families(operations: Mapping[str, Mapping[str, Any]]) -> Iterator[Metric]:
    for row in OPERATION_METRICS:
        family = _family(row, ("operation",))
        for operation, numbers in operations.items():
            family.add_metric([operation], numbers[row.path])
        yield family
    errors = CounterMetricFamily(
        PREFIX + "tier2_errors",
        "Requests that failed, by the provider's code or what happened.",
        labels=("operation", "kind"),
    )
    seconds = HistogramMetricFamily(
        PREFIX + "tier2_request_seconds", "How long requests took.", labels=("operation",)
    )
    for operation, numbers in operations.items():
        for kind, count in _bounded(numbers["errors"]):
            errors.add_metric([operation, kind], count)
        counts = list(itertools.accumulate(numbers["latency_counts"]))
        bounds = [*(str(bound) for bound in LATENCY_BOUNDS_S), "+Inf"]
        seconds.add_metric([operation], list(zip(bounds, counts, strict=True)), numbers["seconds"])
    yield errors
    yield seconds


def _bounded(errors: Mapping[str, int]) -> list[tuple[str, int]]:
    """By kind, the most frequent first; what is behind ERROR_KINDS_MAX as one."""
    found = sorted(errors.items(), key=lambda item: (-item[1], item[0]))
    rest = sum(count for _, count in found[ERROR_KINDS_MAX:])
    return [*found[:ERROR_KINDS_MAX], *([("other", rest)] if rest else [])]


# --- the cluster ----------------------------------------------------------------------------------


def _move_families(cluster: Snapshot) -> Iterator[Metric]:
    for row in CLUSTER_TIMES:
        family = _family(row, ("container",))
        seconds: Mapping[int, float] = cluster[row.path]
        if len(seconds) <= CONTAINERS_MAX:
            for number, taken in sorted(seconds.items()):
                family.add_metric([str(number)], taken)
        else:
            family.add_metric(["all"], max(seconds.values()))
        yield family


# --- containers -----------------------------------------------------------------------------------


def _by_state(statuses: Mapping[int, Snapshot]) -> Metric:
    states = GaugeMetricFamily(
        PREFIX + "containers", "Containers by state; only running ones serve.", labels=("state",)
    )
    counts = _count(str(status["state"]) for status in statuses.values())
    for state, count in sorted(counts.items()):
        states.add_metric([state], count)
    return states


def _container_families(containers: Mapping[int, Snapshot]) -> Iterator[Metric]:
    held = GaugeMetricFamily(
        PREFIX + "throttled_containers",
        "Containers that hold writers back, by what.",
        labels=("by",),
    )
    reasons = (
        str(numbers.get("processor", {}).get("throttled_by", "")) for numbers in containers.values()
    )
    for reason, count in sorted(_count(reason for reason in reasons if reason).items()):
        held.add_metric([reason], count)
    yield held
    values: dict[str, dict[str, float]] = {}
    for container_id, numbers in containers.items():
        label = str(container_id) if len(containers) <= CONTAINERS_MAX else "all"
        for path, value in _numbers(numbers):
            of_path = values.setdefault(path, {})
            row = _CONTAINER.get(path)
            if label not in of_path:
                of_path[label] = value
            else:
                of_path[label] = (
                    max(of_path[label], value)
                    if row is not None and row.largest
                    else of_path[label] + value
                )
    for path, by_label in values.items():
        family = _family(_CONTAINER.get(path) or _unnamed("container." + path), ("container",))
        for label, value in by_label.items():
            family.add_metric([label], value)
        yield family


# --- helpers --------------------------------------------------------------------------------------


def _family(row: MetricName, labels: tuple[str, ...]) -> GaugeMetricFamily | CounterMetricFamily:
    make = CounterMetricFamily if row.kind == "counter" else GaugeMetricFamily
    return make(PREFIX + row.name, row.help, labels=labels)


def _unnamed(path: str) -> MetricName:
    return MetricName(path, path.replace(".", "_"), "gauge", f"`{path}` of stats().")


def _numbers(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for key, value in values.items():
        path = f"{prefix}{key}"
        if path in LEFT_OUT:
            continue
        if isinstance(value, Mapping):
            yield from _numbers(value, path + ".")
        elif isinstance(value, int | float):
            yield path, float(value)


def _count(words: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for word in words:
        counts[word] = counts.get(word, 0) + 1
    return counts
