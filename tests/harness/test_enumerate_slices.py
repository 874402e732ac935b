"""Crash points of truncations and deletions whose chunks are released in slices, and of merges that
are linked in slices.

They lie between any two slices, with snapshots of the metadata and without, of active and of idle
segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from unittest import mock

import pytest

from durablelog.chunk_slices import Slices
from durablelog.operations import DeleteOperation, TruncateOperation
from recovery.harness.enumeration.driver import EnumerationResult, enumerate_group
from recovery.harness.enumeration.workloads import EnumeratedWorkload, prepare, record
from recovery.harness.history import CallOutcome
from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata
from storagewriter.chunk_releaser import ChunkReleaser
from storagewriter.flush_loop import FlushLoop
from storagewriter.link_plan import LinkPlan
from tests.support.suites import share, size, sized

CAP = size("HARNESS_SLICES_CAP", 1, 2)
"""States of a crash point, at most."""
WORKLOADS = (
    "object/delete",
    "object/truncate",
    "object/flush,truncate",
    "object/delete,checkpoint",
    "object/truncate,flush",
    "object/truncate,delete",
    "files/delete",
    "snapshots/delete",
    "snapshots/delete,checkpoint",
    "snapshots/delete,delete",
    "idle/delete",
    "idle/truncate",
    "idle/truncate,leave",
    "idle/delete,leave,delete",
)
MERGES = (
    "object/merge,merge",
    "object/merge,merge,truncate",
    "object/merge,merge,flush",
    "object/merge,merge,checkpoint",
    "object/merge,merge,merge",
    "files/merge,merge",
    "snapshots/merge,merge",
    "snapshots/merge,merge,checkpoint",
    "idle/merge,merge",
    "idle/merge,merge,leave",
)


@pytest.fixture(autouse=True)
def _all_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever has a chunk counts as long."""
    monkeypatch.setattr(Slices, "chunks_max", 1)
    monkeypatch.setattr(Slices, "linked_max", 1)

    def deletion(
        _: ContainerMetadata, segment: SegmentMetadata, *, merging: bool
    ) -> DeleteOperation:
        del merging
        return DeleteOperation(segment.segment_id, in_slices=True)

    def truncation(
        _: ContainerMetadata, segment: SegmentMetadata, offset: int, *, merging: bool
    ) -> TruncateOperation:
        del merging
        return TruncateOperation(segment.segment_id, offset, in_slices=True)

    monkeypatch.setattr("durablelog.chunk_slices.deletion", deletion)
    monkeypatch.setattr("durablelog.chunk_slices.truncation", truncation)


@sized(14)
@pytest.mark.parametrize("name", share(WORKLOADS, 4, 14))
def test_a_crash_between_two_slices_loses_nothing_and_leaves_nothing(name: str) -> None:
    result, workload = EnumerationResult(), EnumeratedWorkload.parse(name)
    base = prepare(workload.stage)
    released = 0
    release_some = ChunkReleaser.release_some

    async def counted(releaser: ChunkReleaser) -> None:
        nonlocal released
        await release_some(releaser)
        released += 1

    with mock.patch.object(ChunkReleaser, "release_some", counted):
        recording = record(workload, base)
        assert all(call.outcome is CallOutcome.OK for call in recording.history.calls)
        result.add(enumerate_group((workload,), cap=CAP, deeper_of=0, base=base))
    assert [str(each) for each in result.violations] == []
    assert released > 1, "by those that were killed, and by those that went on"


@sized(10)
@pytest.mark.parametrize("name", share(MERGES, 3, 10))
def test_a_crash_between_two_slices_of_a_link_loses_nothing(name: str) -> None:
    result, workload = EnumerationResult(), EnumeratedWorkload.parse(name)
    base = prepare(workload.stage)
    slices = 0
    link = FlushLoop._link

    async def counted(loop: FlushLoop, plan: LinkPlan, segment_ids: Sequence[int]) -> None:
        nonlocal slices
        await link(loop, plan, segment_ids)
        slices += plan.in_slices

    with mock.patch.object(FlushLoop, "_link", counted):
        recording = record(workload, base)
        assert all(call.outcome is CallOutcome.OK for call in recording.history.calls)
        assert slices
        result.add(enumerate_group((workload,), cap=CAP, deeper_of=0, base=base))
    assert [str(each) for each in result.violations] == []
    assert slices > 1, "by those that were killed, and by those that went on"
