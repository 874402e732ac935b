"""Hosts that do what the map says, a step at a time, and report it: a model for the decision."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from segmentstore.cluster.assignment_map import AssignmentMap
from segmentstore.cluster.host_record import ContainerReport, HostRecord, ReportedState

START_MS = 1_760_000_000_000


def host(host_id: str, capacity: int = 100, started_ms: int = START_MS) -> HostRecord:
    return HostRecord(host_id, "10.0.0.1", 9090, "0.1.0", started_ms, capacity)


def hosts(count: int) -> dict[str, HostRecord]:
    return {f"h{number:02}": host(f"h{number:02}") for number in range(count)}


def reports(
    records: Mapping[str, HostRecord], current: AssignmentMap, since_ms: int = START_MS
) -> dict[str, HostRecord]:
    """The hosts when they serve exactly what the map says."""
    owned: dict[str, dict[int, ContainerReport]] = {host_id: {} for host_id in records}
    for number, owner in current.owners.items():
        if owner in owned:
            owned[owner][number] = ContainerReport(ReportedState.RUNNING, since_ms)
    return {
        host_id: dataclasses.replace(record, containers=owned[host_id])
        for host_id, record in records.items()
    }


def with_state(
    record: HostRecord, number: int, state: ReportedState | None, since_ms: int = START_MS
) -> HostRecord:
    """The record with another state of one container; None takes it off."""
    left = {key: value for key, value in record.containers.items() if key != number}
    if state is not None:
        left[number] = ContainerReport(state, since_ms)
    return dataclasses.replace(record, containers=left)


def step(
    now_ms: int,
    host_id: str,
    records: dict[str, HostRecord],
    current: AssignmentMap,
    failing: Iterable[tuple[int, str]] = (),
) -> None:
    """The host reads the map and takes each of its containers one state further."""
    record = records[host_id]
    for number, report in record.containers.items():
        further: dict[ReportedState, ReportedState | None] = (
            {ReportedState.STARTING: ReportedState.RUNNING, ReportedState.STOPPING: None}
            if current.owners.get(number) == host_id
            else {
                ReportedState.STARTING: None,
                ReportedState.RUNNING: ReportedState.STOPPING,
                ReportedState.STOPPING: None,
                ReportedState.FAILED: None,
            }
        )
        if report.state not in further:
            continue
        state = further[report.state]
        if state is ReportedState.RUNNING and (number, host_id) in failing:
            state = ReportedState.FAILED
        record = with_state(record, number, state, now_ms)
    for number, owner in current.owners.items():
        known = record.containers.get(number)
        if known is not None and known.state is not ReportedState.FAILED:
            continue
        if not current.is_start_due(number, host_id, known.since_ms if known else None):
            continue
        if owner == host_id and not is_elsewhere(number, host_id, records):
            record = with_state(record, number, ReportedState.STARTING, now_ms)
    records[host_id] = record


def is_elsewhere(number: int, host_id: str, records: Mapping[str, HostRecord]) -> bool:
    """Whether another host has it in hand."""
    return any(
        (report := record.containers.get(number)) is not None
        and report.state is not ReportedState.FAILED
        for other, record in records.items()
        if other != host_id
    )
