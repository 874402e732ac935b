"""Hosts that are passed over for a container which failed there.

Pure. A failure is a new one if the host reports it since another time than the one before. Times of
a host are compared with its own alone, so that clocks need not agree.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

from segmentstore.cluster.assignment_map import AssignmentMap, PassedOver
from segmentstore.cluster.host_record import HostRecord, ReportedState

PASS_OVER_MS: Final = 60 * 1000
"""After a first failure; doubles with each further one."""
PASS_OVER_MS_MAX: Final = 10 * 60 * 1000
FORGOTTEN_MS: Final = 10 * 60 * 1000
"""How long after its time has passed a failure still counts for the doubling."""
PASSED_OVER_MAX: Final = 10_000
"""Entries of the map. Beyond it, failures of containers that have another host now go first."""


def noted_failures(
    now_ms: int, containers: int, hosts: Mapping[str, HostRecord], before: AssignmentMap
) -> dict[tuple[int, str], PassedOver]:
    """The entries after what hosts report, and after time has passed.

    A failure counts on the owner alone. Another host reports the end of what it had: it was cut
    off or stopped, and the owner has fenced it. That says nothing against it.
    """
    after = {
        (number, host_id): _aged(now_ms, over)
        for (number, host_id), over in before.passed_over.items()
        if number < containers
        and host_id in hosts
        and (
            # A host that has not dropped the failure yet would report it as a new one.
            failed_since(hosts[host_id], number) == over.failed_ms
            or -PASS_OVER_MS_MAX <= now_ms - over.until_ms < FORGOTTEN_MS
        )
    }
    for host_id, record in hosts.items():
        for number, report in record.containers.items():
            if number >= containers or report.state is not ReportedState.FAILED:
                continue
            if before.owners.get(number) != host_id:
                continue
            last = after.get((number, host_id))
            if last is None or last.failed_ms != report.since_ms:
                failures = 1 if last is None else last.failures + 1
                until_ms = now_ms + _span_ms(failures)
                after[number, host_id] = PassedOver(until_ms, failures, report.since_ms)
    if len(after) <= PASSED_OVER_MAX:
        return after

    def rank(pair: tuple[int, str]) -> tuple[bool, int, tuple[int, str]]:
        return before.owners.get(pair[0]) != pair[1], -after[pair].until_ms, pair

    return {pair: after[pair] for pair in sorted(after, key=rank)[:PASSED_OVER_MAX]}


def failing_hosts(passed_over: Mapping[tuple[int, str], PassedOver]) -> set[str]:
    """Hosts that are passed over now for a container which failed on no other host.

    What moves there by plan would be interrupted to fail, too. A container that failed on several
    hosts says nothing of them.
    """
    failed_on: dict[int, list[str]] = {}
    for (number, host_id), over in passed_over.items():
        if not over.is_over:
            failed_on.setdefault(number, []).append(host_id)
    return {host_ids[0] for host_ids in failed_on.values() if len(host_ids) == 1}


def undropped_failures(
    hosts: Mapping[str, HostRecord], noted: Mapping[tuple[int, str], PassedOver]
) -> set[tuple[int, str]]:
    """Containers with hosts that report them as failed, of which nothing is noted.

    A host that was given one of these before it has dropped it would be taken to have failed it.
    """
    return {
        (number, host_id)
        for host_id, record in hosts.items()
        for number, report in record.containers.items()
        if report.state is ReportedState.FAILED
        and ((over := noted.get((number, host_id))) is None or over.failed_ms != report.since_ms)
    }


def failed_since(record: HostRecord, container_id: int) -> int | None:
    """`since_ms` of the container's failure, as its host reports it; None if it reports none."""
    report = record.containers.get(container_id)
    return report.since_ms if report and report.state is ReportedState.FAILED else None


def _span_ms(failures: int) -> int:
    # The shift is bounded: a failure more than the longest span needs changes nothing.
    return min(PASS_OVER_MS << min(failures - 1, 10), PASS_OVER_MS_MAX)


def _aged(now_ms: int, over: PassedOver) -> PassedOver:
    # A time further off than any span was set by a clock ahead of this one.
    if over.is_over or now_ms < over.until_ms <= now_ms + PASS_OVER_MS_MAX:
        return over
    return dataclasses.replace(over, is_over=True)
