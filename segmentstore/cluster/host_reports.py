"""What a host says of itself in its record, and when it says it again. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from segmentstore.cluster.host_record import ContainerReport, HostLoad, HostRecord, ReportedState
from segmentstore.container import ContainerStatus, HostState
from segmentstore.contracts.errors import describe

LOAD_S: Final = 10.0
"""A load that changes is written again after so long."""


class HostIdentity(NamedTuple):
    """What does not change while a host is there."""

    host_id: str
    host: str
    """Where clients connect to."""
    port: int
    version: str
    """Of the software."""
    capacity: int
    """Its weight: of two hosts, one with twice the capacity has twice the containers."""
    controller_host: str = ""
    controller_port: int = 0
    """Of its Controller; 0: it has none."""


def record_of(
    me: HostIdentity,
    started_ms: int,
    statuses: Mapping[int, ContainerStatus],
    load: HostLoad,
    *,
    draining: bool,
) -> HostRecord:
    """The record of a host with these containers."""
    return HostRecord(
        host_id=me.host_id,
        host=me.host,
        port=me.port,
        version=me.version,
        started_ms=started_ms,
        capacity=me.capacity,
        draining=draining,
        load=load,
        controller_host=me.controller_host,
        controller_port=me.controller_port,
        containers={
            number: ContainerReport(
                ReportedState(status.state.value),
                status.since_ms,
                "" if status.cause is None else describe(status.cause),
            )
            for number, status in statuses.items()
            if status.state is not HostState.STOPPED
        },
    )


def is_newer(before: HostRecord, now: HostRecord, age_s: float) -> bool:
    """Whether others are to know `now`, when they have had `before` for so long."""
    if replace(before, load=now.load) != now:
        return True
    return before.load != now.load and age_s >= LOAD_S
