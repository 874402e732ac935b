"""LoadMeter: the load of this host, for its record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from segmentstore.cluster.host_record import HostLoad
from segmentstore.cluster.host_reports import LOAD_S
from segmentstore.container import ContainerLoad


class Loaded(Protocol):
    """A container that serves."""

    def load(self) -> ContainerLoad:
        """As of now."""


class LoadMeter:
    """Measures over spans of LOAD_S; `containers` gives those that serve, `time_s` a clock that
    only goes forward.
    """

    def __init__(
        self, containers: Callable[[], Sequence[Loaded]], time_s: Callable[[], float]
    ) -> None:
        self._containers = containers
        self._time_s = time_s
        self._begun_s = time_s()
        self._counts: dict[Loaded, ContainerLoad] = {}
        self._load = HostLoad()

    def load(self) -> HostLoad:
        """Of the last whole span. O(containers) once in a span."""
        span_s = self._time_s() - self._begun_s
        if span_s < LOAD_S:
            return self._load
        counts = {container: container.load() for container in self._containers()}
        none = ContainerLoad(0, 0, 0, 0)
        before = {each: self._counts.get(each, none) for each in counts}
        appended = sum(
            now.bytes_appended - before[each].bytes_appended for each, now in counts.items()
        )
        read = sum(now.bytes_read - before[each].bytes_read for each, now in counts.items())
        self._load = HostLoad(
            bytes_in_per_s=round(appended / span_s),
            bytes_out_per_s=round(read / span_s),
            unflushed_bytes=sum(each.unflushed_bytes for each in counts.values()),
            active_segments=sum(each.active_segments for each in counts.values()),
        )
        self._begun_s += span_s
        self._counts = counts
        return self._load
