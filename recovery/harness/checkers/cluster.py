"""Cluster: one owner at a time acknowledges, the map changes by compare-and-set alone, and what was
read once stays so.

Pure, over a ClusterRecord. What was appended is checked by the checkers of histories. Rules of this
file:

- an owner that was given a change behind an acknowledgement of a later owner never acknowledges it.
  One that was given it before may: then it reached the log before the fence, and the content says
  whether it did;
- an epoch of a log belongs to one process;
- where nothing but orderly stops and edits happens, each owner has released its containers before
  the next one starts them, and no append that was taken is in doubt.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from recovery.harness.cluster_record import Acknowledgement, ClusterRecord
from recovery.harness.history import Observation, Violation
from segmentstore.cluster.assignment import MOVES_AT_ONCE

OWNERS: Final = "owners"
MAP: Final = "map"
READS: Final = "reads"
HANDOVER: Final = "handover"


def check(
    record: ClusterRecord, observation: Observation | None, *, orderly: bool
) -> Iterator[Violation]:
    """Violations of one run; `observation` is the last one, None: there is none.

    `orderly`: nothing died, hung or was cut off in it.
    """
    yield from _one_owner(record)
    yield from _one_process(record)
    yield from _compare_and_set(record)
    if observation is not None:
        yield from _read_bytes(record, observation)
    if orderly:
        yield from _handed_over(record)
    for disorder in record.disorders:
        yield Violation(disorder.kind, disorder.detail)


def _one_owner(record: ClusterRecord) -> Iterator[Violation]:
    """O(n log n): at each beginning, the highest epoch that had acknowledged by then."""
    for container, given in _by_container(record).items():
        ended = sorted(given, key=lambda each: each.ended)
        place, latest = 0, ended[0]
        for each in sorted(given, key=lambda each: each.begun):
            while place < len(ended) and ended[place].ended < each.begun:
                if ended[place].epoch > latest.epoch:
                    latest = ended[place]
                place += 1
            if latest.ended < each.begun and each.epoch < latest.epoch:
                yield Violation(
                    OWNERS,
                    f"container {container}: {each.process} in epoch {each.epoch} acknowledged "
                    f"what it was given behind an acknowledgement of {latest.process} in epoch "
                    f"{latest.epoch}",
                )
                break


def _one_process(record: ClusterRecord) -> Iterator[Violation]:
    for container, given in _by_container(record).items():
        owners: dict[int, str] = {}
        for each in given:
            owner = owners.setdefault(each.epoch, each.process)
            if owner != each.process:
                yield Violation(
                    OWNERS,
                    f"container {container}: {owner} and {each.process} both acknowledged in epoch "
                    f"{each.epoch}",
                )
                break


def _by_container(record: ClusterRecord) -> dict[int, list[Acknowledgement]]:
    found: dict[int, list[Acknowledgement]] = {}
    for each in record.acknowledgements:
        found.setdefault(each.container, []).append(each)
    return found


def _compare_and_set(record: ClusterRecord) -> Iterator[Violation]:
    for before, after in zip(record.maps, record.maps[1:], strict=False):
        if after.map.epoch != before.map.epoch + 1:
            same = " with another content" if after.map.epoch == before.map.epoch else ""
            yield Violation(
                MAP,
                f"version {after.version} of the map has epoch {after.map.epoch}{same}, the one "
                f"before it {before.map.epoch}",
            )
            break
        if len(after.map.moves) > MOVES_AT_ONCE:
            yield Violation(
                MAP, f"epoch {after.map.epoch} has {len(after.map.moves)} moves under way"
            )
            break


def _handed_over(record: ClusterRecord) -> Iterator[Violation]:
    if fenced := record.counts["take-overs"]:
        yield Violation(HANDOVER, f"{fenced} containers were fenced, whose owners released them")
    if unknown := record.counts["unknown outcomes"]:
        yield Violation(HANDOVER, f"{unknown} appends that a host took are in doubt")


def _read_bytes(record: ClusterRecord, observation: Observation) -> Iterator[Violation]:
    for seen in record.reads:
        there = observation.segments.get(seen.segment)
        if there is None:
            continue
        begin = seen.offset - there.start_offset
        if there.content[max(0, begin) : begin + len(seen.data)] != seen.data[max(0, -begin) :]:
            yield Violation(
                READS,
                f"{seen.process} gave {len(seen.data)} bytes at {seen.offset} of "
                f"{seen.segment!r} that are not there",
            )
            return
