"""Mutants of Tier 2 (DESIGN 4.3): which objects count, what they hold, and when they go."""

from __future__ import annotations

from typing import Final

from recovery.harness.mutants.mutant import Edit, Hunt, Mutant
from recovery.harness.runs.directed import BUSY

_UPLOADER: Final = "storagewriter.object_uploader:ObjectUploader"
_STORED: Final = "durablelog.storage_metadata"

TIER2: Final = (
    Mutant(
        "failed-upload-committed",
        "4.3 The log is the only authority: an object becomes part of a segment when it "
        "is there and the log says so.",
        "An upload that failed, or whose reply was lost, counts as done.",
        (Edit(f"{_UPLOADER}.store", "health.failed(error)", "health.failed(error)\nreturn name"),),
        Hunt(workload="tier2", settings={**BUSY}, rates={"object.put.failed": 0.1}),
    ),
    Mutant(
        "lost-reply-taken-for-failure",
        "4.3 A lost reply is resolved by recognising one's own object, never by assuming failure; "
        "an unknown outcome never deletes.",
        "After a put without an answer the object is deleted and put again, while the "
        "first two may still be on their way.",
        (
            Edit(
                f"{_UPLOADER}.store",
                "health.failed(error)",
                "health.failed(error)\n"
                "try:\n    await self._storage.delete(name)\nexcept "
                "StorageUnavailableError:\n    pass",
            ),
        ),
        Hunt(
            workload="tier2",
            settings={**BUSY},
            rates={"object.put.lost-reply": 0.3, "object.delete.late": 0.5},
        ),
        bugs=("B2",),
    ),
    Mutant(
        "names-used-again",
        "4.3 Object names are never reused: container, epoch, and a unique id are in every name.",
        "All objects of one epoch have the same unique id, so that an upload finds an "
        "earlier one and takes it for its own.",
        (
            Edit(
                f"{_UPLOADER}.store",
                "unique_id = new_tagged_id(self._tag, self._runtime.random)\nwhile True:",
                "unique_id = bytes(16)\nwhile True:",
            ),
        ),
        Hunt(workload="tier2", settings={**BUSY}),
        bugs=("B6", "B13"),
    ),
    Mutant(
        "stored-length-ahead",
        "4.1 0 <= StorageLength <= Length; 4.3 the log says what Tier 2 has.",
        "A storage update moves the storage length to the segment's length, past its last chunk.",
        (
            Edit(
                f"{_STORED}:_add_chunk",
                "segment.storage_length = chunk.end_offset",
                "segment.storage_length = segment.length",
            ),
        ),
        Hunt(workload="tier2", settings={**BUSY}),
    ),
    Mutant(
        "chunk-dropped-with-its-head",
        "4.3 Nothing is deleted before no metadata can want it.",
        "A truncation drops the chunk it falls into, though bytes behind it are still wanted.",
        (
            Edit(
                f"{_STORED}:_release_below",
                "for chunk in segment.chunks.remove_below(offset, pages):",
                "cut = list(segment.chunks.between(0, offset))\n"
                "below = cut[-1].end_offset if cut else offset\n"
                "for chunk in segment.chunks.remove_below(below, pages):",
            ),
        ),
        Hunt(workload="tier2", settings={**BUSY}),
    ),
    Mutant(
        "deleted-with-its-first-chunk",
        "4.3 Nothing is deleted before no metadata can want it.",
        "An object goes with the first of its chunks that is dropped, though others lie in it.",
        (Edit(f"{_STORED}:_release", "if not live.live_chunks:", "if live.live_chunks >= 0:"),),
        Hunt(settings={**BUSY, "flush_bytes": 2000, "object_bytes": 2000}),
        bugs=("B3",),
    ),
    Mutant(
        "just-written-deleted",
        "4.3 Nothing is deleted before no metadata, no reader, no running work can want "
        "it: unreferenced in the log first.",
        "The collector takes the newest object along with the garbage.",
        (
            Edit(
                "storagewriter.garbage_collector:GarbageCollector._due",
                "clock.observe(garbage, now_s)",
                "clock.observe(garbage, now_s)\n"
                "if self._source.metadata.garbage:\n"
                "    return [*self._source.metadata.garbage, "
                "*list(self._source.metadata.objects)[-1:]]",
            ),
        ),
        Hunt(workload="tier2", settings={**BUSY}),
        bugs=("B3",),
    ),
    Mutant(
        "segment-deleted-meanwhile",
        "4.3 The log is the only authority: chunks of what is gone by the time they "
        "commit are passed over.",
        "An upload that commits after its segment was deleted is applied to a segment "
        "that is not there.",
        (
            Edit(
                f"{_STORED}:apply_storage_update",
                "segment = metadata.segments.get(segment_id)",
                "segment = metadata.segments[segment_id]",
            ),
        ),
        Hunt(workload="tier2", settings={**BUSY}),
        bugs=("B8",),
    ),
    Mutant(
        "unwanted-object-forgotten",
        "4.3 Unreferenced in the log, then a deletion lag, then delete, then confirm.",
        "An object of which nothing is wanted when it commits never becomes garbage, and "
        "stays for ever.",
        (
            Edit(
                f"{_STORED}:_retire_unwanted",
                "if live is not None and not live.live_chunks:",
                "if False:",
            ),
        ),
        Hunt(workload="tier2", settings={**BUSY}, cycles=({"ending": "power", "checked": True},)),
        bugs=("B15",),
    ),
    Mutant(
        "extents-not-checked",
        "4.3 Every read from Tier 2 is checked against the extents' checksums.",
        "The bytes of an extent are given out as they come.",
        (Edit("tier2.block_object:verify_extent", "if actual != expected:", "if False:"),),
        Hunt(
            workload="readers",
            settings={
                **BUSY,
                "cache_bytes_max": 4000,
                "tail_bytes_max": 64,
                "piece_bytes": 400,
                "fetched_bytes_max": 1000,
            },
            rates={"object.get.truncated": 0.1, "object.get.wrong-range": 0.1},
        ),
        bugs=("B19",),
    ),
    Mutant(
        "taken-bytes-not-booked",
        "4.2 The log is truncated where everything before is in Tier 2: what is not "
        "there is known to be owed.",
        "Appends to a segment that is being uploaded are not noted as un-flushed.",
        (
            Edit(
                "storagewriter.pending_segments:PendingSegments.add",
                "if aggregator is None:",
                "if aggregator is None or segment_id in self.busy:",
            ),
        ),
        Hunt(workload="tier2", settings={**BUSY}),
        bugs=("B10",),
    ),
    Mutant(
        "object-file-not-synced",
        "4.3 An object becomes part of a segment when it is durable and the log says so.",
        "The file Tier 2 gives an object its name without having synced its bytes.",
        (Edit("tier2.synced_writing:write_synced", "file.sync()", "pass"),),
        Hunt(workload="tier2", tier2="file", settings={**BUSY}),
        bugs=("B18",),
    ),
    Mutant(
        "object-folder-not-synced",
        "4.3 An object becomes part of a segment when it is durable and the log says so.",
        "The file Tier 2 does not make an object's name durable.",
        (Edit("tier2.file_tree:FileTree._publish", "self._disk.sync_directory(folder)", "pass"),),
        Hunt(workload="tier2", tier2="file", settings={**BUSY}),
    ),
    Mutant(
        "linked-before-it-is-stored",
        "4.3 The log says what Tier 2 has: a merge is linked when its source is there whole.",
        "A merge is linked though a part of its source is not in Tier 2 yet.",
        (
            Edit(
                "storagewriter.link_plan:plan_links",
                "source.storage_length == source.length",
                "source.storage_length",
            ),
        ),
        Hunt(workload="lifecycle", settings={**BUSY}),
    ),
)
