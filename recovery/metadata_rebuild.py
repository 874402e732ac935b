"""A container's metadata, rebuilt from what Tier 2 holds: a checkpoint, perhaps, and blocks found
in objects. Pure.

Theory of operation. Bytes of a segment at an offset never change once acknowledged, and only
acknowledged bytes are ever uploaded. So any two blocks that hold a byte of one segment agree on it,
whatever attempt, epoch or consolidation wrote them. Rebuilding is therefore covering: the chunks
the checkpoint knows and the blocks found are laid over one another, and each segment gets what is
covered without a gap. Rules (docs/restore.md):

- an id the checkpoint could know and does not is of a segment deleted or merged before it: its
  blocks are passed over;
- a segment keeps its name, and its *last* run without a gap. Gaps come from truncation, which drops
  what is before them. Each earlier run becomes a segment with an invented name, for a gap may also
  be a loss: nothing found is dropped;
- a merge that was not linked is linked if its source is whole or the target has the bytes. Else the
  target ends before it and the source is a segment again;
- of two segments with one name the younger has it: the name was free when it was made;
- of an object that is there in another size than recorded the whole blocks count; what the others
  held is lost, and named;
- a name that no caller could have given (a control character, bytes that are no text) is replaced
  by a made-up one.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from durablelog.checkpoint_codec import decode_checkpoint, encode_checkpoint
from recovery.restore_losses import OBJECT_MISSING, losses_of
from recovery.restore_report import FoundBlock, Gap, SegmentRestore
from segmentstore.contracts.chunk_list import ChunkList
from segmentstore.contracts.chunks import ChunkRecord, ObjectRecord
from segmentstore.contracts.metadata import ContainerMetadata, MergeRecord, SegmentMetadata
from segmentstore.contracts.metadata_checks import assert_metadata_valid
from segmentstore.contracts.object_states import LiveObject
from segmentstore.contracts.segments import may_name_a_segment
from tier2.object_storage import StoredObject

_CHECKS_MAX = 64
"""Blocks checked for the new place of a chunk whose object is missing."""

Run = list[ChunkRecord]
"""Chunks one behind another without a gap; at least one."""


class Rebuilt(NamedTuple):
    """What `rebuild` gives."""

    metadata: ContainerMetadata
    """Its sequence number is the highest id given."""
    segments: list[SegmentRestore]
    """By id."""


def join(chunks: Iterable[ChunkRecord], start_offset: int) -> list[Run]:
    """The stretches covered from `start_offset` on, each by the fewest chunks, cut where they
    overlap. O(n log n).
    """
    waiting = sorted(chunks, key=lambda chunk: (chunk.start_offset, chunk.end_offset))
    runs: list[Run] = []
    run: Run = []
    position, index = start_offset, 0
    best: ChunkRecord | None = None
    while True:
        while index < len(waiting) and waiting[index].start_offset <= position:
            if best is None or waiting[index].end_offset >= best.end_offset:
                best = waiting[index]
            index += 1
        if best is not None and best.end_offset > position:
            # What lies below the start offset may stay: truncation leaves it as well.
            run.append(_cut(best, position) if run or runs else best)
            position = best.end_offset
            continue
        if run:
            runs.append(run)
            run = []
        if index == len(waiting):
            return runs
        position = waiting[index].start_offset


def _cut(chunk: ChunkRecord, position: int) -> ChunkRecord:
    """The chunk from `position` on."""
    skipped = position - chunk.start_offset
    return chunk._replace(
        start_offset=position,
        length=chunk.length - skipped,
        block_start_offset=chunk.block_start_offset + skipped,
    )


def rebuild(
    container_id: int,
    checkpoint: ContainerMetadata | None,
    blocks: Sequence[FoundBlock],
    objects: Mapping[str, StoredObject],
    *,
    first_id: int,
    now_ms: int,
    fits: Callable[[str], bool],
    cut: Sequence[FoundBlock] = (),
) -> Rebuilt:
    """The metadata of a container.

    `blocks` are of objects that were walked, since the checkpoint does not know them or knows
    another size; `cut` are those whose ends are missing. `objects` are all of this container that
    are there. Ids from `first_id` on are free. `fits` says whether a name is one of this
    container's. O(n log n) in chunks and blocks.
    """
    return _Rebuilding(container_id, checkpoint, blocks, objects, first_id, now_ms, fits, cut).run()


class _Rebuilding:
    def __init__(
        self,
        container_id: int,
        checkpoint: ContainerMetadata | None,
        blocks: Sequence[FoundBlock],
        objects: Mapping[str, StoredObject],
        first_id: int,
        now_ms: int,
        fits: Callable[[str], bool],
        cut: Sequence[FoundBlock],
    ) -> None:
        self._known = checkpoint if checkpoint is not None else ContainerMetadata(container_id)
        self._objects = objects
        self._now_ms = now_ms
        self._fits = fits
        self._ids = itertools.count(first_id)
        self._last_id = first_id - 1
        self._blocks = _by_segment(blocks)
        self._cut = _by_segment(cut)
        self._placed = {(block.object_name, block.block_offset): block for block in blocks}
        self._runs: dict[int, list[Run]] = {}
        self._result = ContainerMetadata(container_id)
        self._reports: list[SegmentRestore] = []

    def run(self) -> Rebuilt:
        known = self._known.segments
        found = dict.fromkeys((*self._blocks, *self._cut))
        made_later = [
            id_ for id_ in found if id_ not in known and id_ > self._known.sequence_number
        ]
        for segment_id in (*known, *made_later):
            self._resolve(segment_id)
        linked = self._linked()
        # The younger of one name has it; a source that comes back as a segment gets its own only if
        # no other segment has.
        order = sorted((*known, *made_later), reverse=True)
        order.sort(key=lambda id_: id_ in known and known[id_].merged_into is not None)
        for segment_id in order:
            if segment_id not in linked:
                self._make(segment_id)
        self._result.sequence_number = self._last_id
        # Encoded and decoded, so that whatever is counted from the segments is counted in one place
        # only.
        metadata = decode_checkpoint(encode_checkpoint(self._result))
        assert_metadata_valid(metadata)
        return Rebuilt(metadata, sorted(self._reports, key=lambda report: report.segment_id))

    # --- what covers a segment --------------------------------------------------------------------

    def _resolve(self, segment_id: int) -> list[Run]:
        runs = self._runs.get(segment_id)
        if runs is None:
            segment = self._known.segments.get(segment_id)
            found = [_chunk_of(block) for block in self._blocks.get(segment_id, ())]
            if segment is not None:
                found += self._chunks_there(segment)
                for merge in segment.merges:
                    found += self._chunks_of_source(merge)
            runs = self._runs[segment_id] = join(
                found, segment.start_offset if segment is not None else 0
            )
        return runs

    def _chunks_there(self, segment: SegmentMetadata) -> Iterable[ChunkRecord]:
        for chunk in segment.chunks.between(segment.start_offset, segment.length):
            if self._is_whole(chunk.object_name) or self._is_in_whole_block(chunk):
                yield chunk
            else:
                yield from self._elsewhere(chunk)

    def _is_whole(self, object_name: str) -> bool:
        there = self._objects.get(object_name)
        return there is not None and there.size == self._known.objects[object_name].record.size

    def _is_in_whole_block(self, chunk: ChunkRecord) -> bool:
        """Whether its block was found whole where the chunk says it is, in an object that is
        not.
        """
        block = self._placed.get((chunk.object_name, chunk.block_offset))
        return (
            block is not None
            and block.segment_id == chunk.block_segment_id
            and block.start_offset <= chunk.block_start_offset
            and chunk.block_start_offset + chunk.length <= block.end_offset
        )

    def _elsewhere(self, chunk: ChunkRecord) -> Iterable[ChunkRecord]:
        """The chunk in the object its block was copied to.

        Needed for blocks of sources linked long ago: only chunks lead there.
        """
        blocks = self._blocks.get(chunk.block_segment_id, ())
        end = bisect_right(blocks, chunk.block_start_offset, key=lambda block: block.start_offset)
        for block in reversed(blocks[max(0, end - _CHECKS_MAX) : end]):
            if block.end_offset >= chunk.block_start_offset + chunk.length:
                yield chunk._replace(object_name=block.object_name, block_offset=block.block_offset)
                return

    def _chunks_of_source(self, merge: MergeRecord) -> Iterable[ChunkRecord]:
        """The source's chunks at their place in the target, if all that is not linked yet is
        there: merges are all or nothing.
        """
        runs = self._resolve(merge.source_id)
        if (
            len(runs) == 1
            and runs[0][0].start_offset <= self._known.segments[merge.source_id].start_offset
            and runs[0][-1].end_offset == merge.length
        ):
            for chunk in runs[0]:
                yield chunk._replace(start_offset=chunk.start_offset + merge.offset)

    def _linked(self) -> set[int]:
        """Ids of merged sources whose bytes their targets have, or need no more; what was merged
        into those goes with them.
        """
        linked: set[int] = set()
        for segment in self._known.segments.values():
            for merge in segment.merges:
                # What it has of a source already is its own.
                reached = merge.offset + self._known.segments[merge.source_id].start_offset
                start = max(reached, segment.start_offset)
                if start >= merge.end_offset or any(
                    run[0].start_offset <= start and run[-1].end_offset >= merge.end_offset
                    for run in self._runs[segment.segment_id]
                ):
                    linked.add(merge.source_id)
        waiting = list(linked)
        while waiting:
            source = self._known.segments[waiting.pop()]
            for merge in source.merges:
                if merge.source_id not in linked:
                    linked.add(merge.source_id)
                    waiting.append(merge.source_id)
        return linked

    # --- what is made of it -----------------------------------------------------------------------

    def _make(self, segment_id: int) -> None:
        known = self._known.segments.get(segment_id)
        runs = self._runs[segment_id]
        name, notes = self._name_of(segment_id, known)
        segment = SegmentMetadata(
            segment_id, name, known.created_ms if known is not None else self._now_ms
        )
        cut = self._cut.get(segment_id, ())
        stored = max((block.end_offset for block in cut), default=0)
        stored = max(stored, known.storage_length) if known is not None else stored
        segment.start_offset = known.start_offset if known is not None else 0
        gaps = _gaps(runs, segment.start_offset, stored)
        if runs:
            segment.chunks = ChunkList(runs[-1])
            segment.start_offset = max(segment.start_offset, runs[-1][0].start_offset)
            segment.length = segment.storage_length = runs[-1][-1].end_offset
        else:
            # Offsets that were given out are not given again.
            segment.start_offset = segment.length = segment.storage_length = max(
                stored, segment.start_offset
            )
        if known is not None:
            segment.last_modified_ms = known.last_modified_ms
            segment.apply_attributes(dict(known.attributes.items()))
            segment.sealed = known.sealed and segment.length == known.length
            if known.sealed and not segment.sealed:
                notes.append(f"it was sealed at {known.length}; it is open, for bytes are missing")
            if known.merged_into is not None:
                notes.append(
                    f"it had been merged into segment {known.merged_into}, which does "
                    "not have its bytes"
                )
        pieces = [self._make_piece(segment, run) for run in runs[:-1]]
        notes += [f"what was found before a gap is segment {piece!r}" for piece in pieces]
        # Of a segment that no checkpoint knows a truncation would leave the same as a loss.
        unclear = gaps[0] if known is None and runs and gaps and not gaps[0].start_offset else None
        losses = losses_of(
            segment, known, [gap for gap in gaps if gap is not unclear], cut, self._why
        )
        report = self._add(segment, known.length if known is not None else None, gaps, notes)
        self._reports[-1] = replace(
            report,
            losses=[loss._replace(container_id=self._result.container_id) for loss in losses],
            unclear_bytes=unclear.end_offset - unclear.start_offset if unclear is not None else 0,
        )

    def _why(self, object_name: str) -> str:
        """Why nothing more can be had from an object; empty if it is whole."""
        there = self._objects.get(object_name)
        if there is None:
            return OBJECT_MISSING
        recorded = self._known.objects.get(object_name)
        if recorded is None or there.size == recorded.record.size:
            return ""
        return f"the object has {there.size} bytes where {recorded.record.size} are recorded"

    def _make_piece(self, whole: SegmentMetadata, run: Run) -> str:
        """A segment of its own for bytes before a gap, at the offsets they had."""
        name = self._free_name(
            f"recovered/{self._result.container_id:08x}/{whole.segment_id}/{run[0].start_offset}"
        )
        self._last_id = next(self._ids)
        piece = SegmentMetadata(self._last_id, name, self._now_ms)
        piece.start_offset = run[0].start_offset
        if whole.segment_id in self._known.segments:
            piece.start_offset = max(
                piece.start_offset, self._known.segments[whole.segment_id].start_offset
            )
        piece.length = piece.storage_length = run[-1].end_offset
        piece.chunks = ChunkList(run)
        self._add(
            piece,
            None,
            (),
            [f"bytes of segment {whole.name!r} (id {whole.segment_id}) from before a gap in it"],
        )
        return name

    def _add(
        self,
        segment: SegmentMetadata,
        known_length: int | None,
        gaps: Sequence[Gap],
        notes: Sequence[str],
    ) -> SegmentRestore:
        self._result.segments[segment.segment_id] = segment
        self._result.names[segment.name] = segment.segment_id
        for chunk in segment.chunks:
            if chunk.object_name not in self._result.objects:
                self._result.objects[chunk.object_name] = LiveObject(
                    self._record_of(chunk.object_name)
                )
        report = SegmentRestore(
            container_id=self._result.container_id,
            segment_id=segment.segment_id,
            name=segment.name,
            start_offset=segment.start_offset,
            restored_to=segment.length,
            known_length=known_length,
            gaps=gaps,
            notes=notes,
        )
        self._reports.append(report)
        return report

    def _record_of(self, object_name: str) -> ObjectRecord:
        known, there = self._known.objects.get(object_name), self._objects[object_name]
        return ObjectRecord(
            object_name, there.size, there.modified_ms if known is None else known.record.created_ms
        )

    # --- names ------------------------------------------------------------------------------------

    def _name_of(self, segment_id: int, known: SegmentMetadata | None) -> tuple[str, list[str]]:
        name = known.name if known is not None else self._written_name(segment_id)
        no_name = "" if name else self._no_name(segment_id)
        if name and not may_name_a_segment(name):
            name, no_name = "", name
        if name and name not in self._result.names and self._fits(name):
            return name, []
        made_up = self._free_name(f"recovered/{self._result.container_id:08x}/{segment_id}")
        if no_name:
            return made_up, [f"it was called {no_name!r}, and no segment may have that name"]
        if not name:
            return made_up, ["its blocks do not say what it was called"]
        if name in self._result.names:
            return made_up, [f"it was called {name!r}, and a younger segment has that name"]
        return made_up, [f"it was called {name!r}, which is no name of this container"]

    def _written_name(self, segment_id: int) -> str:
        return next(
            (block.segment_name for block in self._all_blocks(segment_id) if block.segment_name), ""
        )

    def _no_name(self, segment_id: int) -> str:
        return next((block.no_name for block in self._all_blocks(segment_id) if block.no_name), "")

    def _all_blocks(self, segment_id: int) -> Iterator[FoundBlock]:
        return itertools.chain(self._blocks.get(segment_id, ()), self._cut.get(segment_id, ()))

    def _free_name(self, base: str) -> str:
        """A free name of this container that begins with `base`; tries about as many as there are
        containers.
        """
        name, number = base, 0
        while name in self._result.names or not self._fits(name):
            number += 1
            name = f"{base}.{number}"
        return name


def _by_segment(blocks: Iterable[FoundBlock]) -> dict[int, list[FoundBlock]]:
    found: dict[int, list[FoundBlock]] = {}
    for block in sorted(
        blocks, key=lambda block: (block.segment_id, block.start_offset, block.object_name)
    ):
        found.setdefault(block.segment_id, []).append(block)
    return found


def _chunk_of(block: FoundBlock) -> ChunkRecord:
    return ChunkRecord(
        block.start_offset,
        block.length,
        block.object_name,
        block.block_offset,
        block.segment_id,
        block.start_offset,
    )


def _gaps(runs: Sequence[Run], start_offset: int, stored: int) -> list[Gap]:
    """What no run covers of [start offset, the end of all runs or what Tier 2 was said to have)."""
    gaps = []
    position = start_offset
    for run in runs:
        if run[0].start_offset > position:
            gaps.append(Gap(position, run[0].start_offset))
        position = run[-1].end_offset
    if position < stored:
        gaps.append(Gap(position, stored))
    return gaps
