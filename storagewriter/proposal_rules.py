"""What the owner of a container thinks of the messages of jobs: checked by its own metadata, never
by what they say.

Rules (DESIGN 4.3):

- a message can be wrong, late or repeated: of what it says of segments, chunks and objects the
  worst that comes is a refusal. What the blocks of its object hold it vouches for itself: headers
  are read here, bodies are not. A proposal whose object has the right headers, and checksums that
  agree with other bytes, is committed, and what it replaced is deleted after the lag;
- what `still_fitting` gives, the metadata updater takes: its assertions hold for every replacement
  that passed here;
- a new chunk is believed only if its block was written for just these bytes. That is this segment
  at this offset, or the place for which the blocks of the old chunks were written; the block's own
  header has to say the same;
- what was done before is recognised: a replacement the metadata have already is accepted, whatever
  job repeats it;
- of objects only those are marked for deletion that no operation of the log can name any more, and
  no proposal is waiting for.

Pure: no await, no clock, no I/O.
"""

from __future__ import annotations

import enum
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from durablelog.metadata_needs import ChunkNeed
from durablelog.operations import ChunkReplacement
from segmentstore.contracts.chunks import ChunkRecord
from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata
from tier2.block_object import HEADER_BYTES, NAMED_HEADER_BYTES_MAX, BlockFormatError, BlockHeader
from tier2.block_runs import check_block_identity
from tier2.mailbox.messages import Answer, Replacement, ReplaceProposal, Verdict
from tier2.object_names import MessageKey, parse_object_name

AGE_MAX_MS: Final = 24 * 3600 * 1000
"""A proposal's object is at most so old by Tier 2's own time; an orphan of a job is at least so
old.
"""
REFUSALS_SHOWN_MAX: Final = 1000
"""Stretches an answer names."""
WINDOW_BYTES: Final = 1024 * 1024
"""Most bytes that one GET fetches for headers."""
HEADER_GAP_BYTES: Final = 64 * 1024
"""Unwanted bytes that are fetched rather than make another request."""


class Standing(enum.Enum):
    """What a replacement is to the metadata as they are."""

    FITS = "fits"
    TAKEN = "taken"
    """The metadata have it already."""
    CHANGED = "changed"
    UNKNOWN = "unknown"
    """There is no such segment."""


class CheckedReplacement(NamedTuple):
    """A replacement, and how it stands."""

    replacement: Replacement
    standing: Standing
    reason: str = ""


# --- proposals ------------------------------------------------------------------------------------


def find_fault(proposal: ReplaceProposal, container_id: int, epoch: int, tag: bytes) -> str | None:
    """What no proposal to this owner may say, in one sentence; None for nothing.

    `tag` is the store's. O(chunks).
    """
    name = proposal.object.name
    parts = parse_object_name(name)
    if parts is None or parts.kind != "compaction":
        return f"{name} is not what an object of a compaction is called"
    if proposal.container_id != container_id or parts.container_id != container_id:
        return f"{name} is of container {parts.container_id}, this is {container_id}"
    if not parts.unique_id.startswith(tag):
        return f"{name} does not carry the tag of this store"
    if parts.job_id != proposal.job_id:
        return f"{name} is of job {parts.job_id}, this is a message of {proposal.job_id}"
    if parts.epoch > epoch:
        return f"{name} is of epoch {parts.epoch}, which is after the running one, {epoch}"
    for replacement in proposal.replacements:
        fault = _fault_of(replacement, name, proposal.object.size)
        if fault is not None:
            return f"segment {replacement.segment_id} at {replacement.old[0].start_offset}: {fault}"
    return None


def _fault_of(replacement: Replacement, name: str, size: int) -> str | None:
    segment_id, old, new = replacement
    if old[0].start_offset != new[0].start_offset or old[-1].end_offset != new[-1].end_offset:
        return (
            f"the old chunks are bytes {old[0].start_offset} to {old[-1].end_offset},"
            f" the new ones {new[0].start_offset} to {new[-1].end_offset}"
        )
    if any(chunk.object_name == name for chunk in old):
        return "an old chunk lies in the new object"
    for chunk in new:
        if chunk.object_name != name:
            return f"a new chunk lies in {chunk.object_name}"
        if chunk.block_offset + HEADER_BYTES > size:
            return f"a new chunk's block is at {chunk.block_offset}, the object has {size} bytes"
    return _foreign_bytes(segment_id, old, new)


def _foreign_bytes(
    segment_id: int, old: Sequence[ChunkRecord], new: Sequence[ChunkRecord]
) -> str | None:
    """Why a new chunk cannot hold the bytes of the old ones at its place, distinguished from what
    the blocks were written for.
    """
    first = 0
    for chunk in new:
        while old[first].end_offset <= chunk.start_offset:
            first += 1
        if (chunk.block_segment_id, chunk.block_start_offset) == (segment_id, chunk.start_offset):
            continue
        index = first
        while index < len(old) and old[index].start_offset < chunk.end_offset:
            if _written_for(old[index]) != _written_for(chunk):
                return (
                    f"the block of the new chunk at {chunk.start_offset} was written for "
                    "other bytes:"
                    f" segment {chunk.block_segment_id} from {chunk.block_start_offset}"
                )
            index += 1
    return None


def _written_for(chunk: ChunkRecord) -> tuple[int, int]:
    """The segment, and the place of this segment's offset 0 in it: the same of all chunks of one
    stretch.
    """
    return chunk.block_segment_id, chunk.block_start_offset - chunk.start_offset


def check_chunks(
    metadata: ContainerMetadata, replacements: Iterable[Replacement], name: str
) -> list[CheckedReplacement]:
    """How replacements by the object of this name stand, in their order. O(chunks).

    Those of their segments that there are must be in memory, with the chunks in question.
    """
    checked = [
        _check_one(metadata.segments.get(each.segment_id), each, name) for each in replacements
    ]
    if name in metadata.garbage:
        late = "nothing refers to the object any more, and it waits for its deletion"
        checked = [
            each._replace(standing=Standing.CHANGED, reason=late) if _fits(each) else each
            for each in checked
        ]
    return checked


def _check_one(
    segment: SegmentMetadata | None, replacement: Replacement, name: str
) -> CheckedReplacement:
    if segment is None:
        return CheckedReplacement(replacement, Standing.UNKNOWN, "there is no such segment")
    old, new = replacement.old, replacement.new
    if segment.chunks.holds(old):
        return CheckedReplacement(replacement, Standing.FITS)
    # Truncation takes chunks from the front: the last of them stays longest.
    found = segment.find_chunk(new[-1].start_offset)
    if found is not None and found.object_name == name:
        return CheckedReplacement(replacement, Standing.TAKEN)
    if segment.start_offset > old[0].start_offset:
        return CheckedReplacement(replacement, Standing.CHANGED, _without_head(segment))
    return CheckedReplacement(
        replacement, Standing.CHANGED, "these are not the segment's chunks any more"
    )


def _without_head(segment: SegmentMetadata) -> str:
    """Why it has no chunks at its beginning."""
    end, target_id = segment.start_offset, segment.merged_into
    if target_id is None:
        return f"the segment is truncated to {end}"
    # Never truncated: it is linked in slices (docs/decisions/0091).
    return (
        f"the segment is merged into {target_id}, which has its chunks below {end} and gets the "
        f"others: propose those of {target_id} when it has all"
    )


def _fits(checked: CheckedReplacement) -> bool:
    return checked.standing is Standing.FITS


def fitting(checked: Iterable[CheckedReplacement]) -> list[Replacement]:
    """Those that the metadata would take."""
    return [each.replacement for each in checked if _fits(each)]


def still_fitting(
    metadata: ContainerMetadata, replacements: Iterable[Replacement], name: str
) -> list[ChunkReplacement]:
    """What of them may be committed in this very turn of the event loop, as the log takes it.

    O(chunks). As `check_chunks`.
    """
    return [
        ChunkReplacement(*each.replacement)
        for each in check_chunks(metadata, replacements, name)
        if _fits(each)
    ]


def segments_in(replacements: Iterable[Replacement]) -> set[int]:
    """The ids that they name."""
    return {each.segment_id for each in replacements}


def chunks_in(replacements: Iterable[Replacement]) -> list[ChunkNeed]:
    """Where they are to replace chunks."""
    return [
        ChunkNeed(segment_id, old[0].start_offset, old[-1].end_offset)
        for segment_id, old, _ in replacements
    ]


def batches(replacements: Iterable[Replacement], chunks_max: int) -> Iterator[list[Replacement]]:
    """Cut so that each has few more than `chunks_max` old chunks, or is one replacement."""
    batch: list[Replacement] = []
    chunks = 0
    for replacement in replacements:
        if batch and chunks + len(replacement.old) > chunks_max:
            yield batch
            batch, chunks = [], 0
        batch.append(replacement)
        chunks += len(replacement.old)
    if batch:
        yield batch


def answer_to(
    proposal: ReplaceProposal, checked: Sequence[CheckedReplacement], *, is_live: bool
) -> Answer:
    """What the owner says once nothing is left to commit: only what the metadata show.

    `is_live`: segments refer to the object. It was committed then, though its segments may have
    changed since: merged into others, deleted, replaced once more.
    """
    taken = sum(each.standing is Standing.TAKEN for each in checked)
    left = [each for each in checked if each.standing is not Standing.TAKEN]
    verdict: Verdict
    if not left:
        verdict = "committed"
    elif taken or is_live:
        verdict = "committed_in_part"
    elif all(each.standing is Standing.UNKNOWN for each in left):
        verdict = "refused_unknown_segment"
    else:
        verdict = "refused_changed"
    refused = [
        {
            "segment_id": each.replacement.segment_id,
            "start_offset": each.replacement.old[0].start_offset,
            "reason": each.reason or "not committed",
        }
        for each in left[:REFUSALS_SHOWN_MAX]
    ]
    reason = (
        f"segment {refused[0]['segment_id']} at {refused[0]['start_offset']}: "
        f"{refused[0]['reason']}"
        if left
        else ""
    )
    detail = {"replacements": len(checked), "taken": taken, "refused": refused}
    return Answer(*proposal.key, verdict, reason, detail)


# --- headers --------------------------------------------------------------------------------------


class HeaderWindow(NamedTuple):
    """Bytes [start, end) of an object, with the headers of blocks in them."""

    start: int
    end: int
    chunks: tuple[ChunkRecord, ...]
    """Those whose blocks begin in it, by place."""


def plan_windows(chunks: Iterable[ChunkRecord], size: int) -> list[HeaderWindow]:
    """The GETs that fetch the headers of these chunks' blocks; all begin a header's length before
    `size` at the latest.
    """
    windows: list[HeaderWindow] = []
    start = end = -1
    held: list[ChunkRecord] = []
    for chunk in sorted(chunks, key=_place_of):
        place, header_end = (
            chunk.block_offset,
            min(chunk.block_offset + NAMED_HEADER_BYTES_MAX, size),
        )
        if held and (place - end > HEADER_GAP_BYTES or header_end - start > WINDOW_BYTES):
            windows.append(HeaderWindow(start, end, tuple(held)))
            held = []
        if not held:
            start = place
        end = header_end
        held.append(chunk)
    if held:
        windows.append(HeaderWindow(start, end, tuple(held)))
    return windows


def check_header(
    header: BlockHeader, chunk: ChunkRecord, container_id: int, epoch: int, size: int
) -> None:
    """Raise BlockFormatError unless this is the block the chunk means, whole, of an object of
    `size` and this epoch.
    """
    check_block_identity(header, container_id, chunk)
    if header.epoch > epoch:
        raise BlockFormatError(f"its epoch {header.epoch} is above that of its object, {epoch}")
    if chunk.block_offset + header.block_length > size:
        raise BlockFormatError(f"its {header.block_length} bytes reach beyond the object's {size}")


# --- orphans --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenProposals(Container[str]):
    """What proposals without an answer may name. `in` says whether an object is one of those."""

    names: Container[str]
    unread_jobs: Container[str]
    """Jobs with a message that could not be read: what it proposes is an object of its job."""

    def __contains__(self, name: object) -> bool:
        if name in self.names:
            return True
        parts = parse_object_name(str(name))
        return parts is not None and parts.job_id is not None and parts.job_id in self.unread_jobs


def reason_to_keep(
    name: str,
    metadata: ContainerMetadata,
    epoch: int,
    in_flight: Container[str],
    proposed: Container[str],
    tag: bytes,
) -> str | None:
    """Why the owner does not mark an object for deletion, in words; None if its name and the
    metadata do not speak for it.

    `tag` is the store's. O(1).
    """
    parts = parse_object_name(name)
    if parts is None:
        return "its name is not one of an object of ours"
    if parts.container_id != metadata.container_id:
        return f"it is of container {parts.container_id}"
    if name in metadata.objects:
        return "segments refer to it"
    if name in metadata.garbage:
        return "it is garbage already, and waits for its deletion"
    if not parts.unique_id.startswith(tag):
        return "it does not carry the tag of this store: it may be another's"
    if name in in_flight:
        return "it is on its way"
    if parts.epoch > epoch:
        return f"it is of an epoch after the running one, {epoch}"
    if parts.kind != "compaction":
        return "it is of the running epoch: its owner manages it" if parts.epoch == epoch else None
    return "a proposal names it that has no answer yet" if name in proposed else None


def reason_to_wait(modified_ms: int, now_ms: int, older_than_ms: int) -> str | None:
    """Why an object of this age is not marked for deletion, in words; None if it is old enough."""
    if modified_ms >= older_than_ms:
        return "it is younger than was asked for"
    return "it is younger than 24 hours" if now_ms - modified_ms <= AGE_MAX_MS else None


def refusal(key: MessageKey, verdict: Verdict, reason: str) -> Answer:
    """An answer without detail. The reason is one sentence."""
    return Answer(*key, verdict, reason)


def _place_of(chunk: ChunkRecord) -> tuple[int, int, int]:
    return chunk.block_offset, chunk.block_start_offset, chunk.start_offset
