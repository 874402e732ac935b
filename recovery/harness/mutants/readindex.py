"""Mutants of reading (DESIGN 4.4): where bytes come from, and that they are the right ones."""

from __future__ import annotations

from typing import Final

from recovery.harness.mutants.mutant import Edit, Hunt, Mutant
from recovery.harness.runs.directed import BUSY

_LITTLE_MEMORY: Final = {
    **BUSY,
    "tail_bytes_max": 64,
    "fetched_bytes_max": 400,
    "piece_bytes": 64,
    "flush_bytes": 20_000,
    "object_bytes": 20_000,
    "upload_bytes_max": 20_000,
    "flush_age_s": 1000.0,
    "unflushed_target_bytes": 1 << 20,
}

_LONG: Final = ({"ending": "power", "operations": 400, "dies_at": None},)

READINDEX: Final = (
    Mutant(
        "addresses-used-again",
        "4.4 The cache is a throw-away, and never gives wrong bytes: an address is given once.",
        "After eight blocks the addresses of the cache begin anew.",
        (
            Edit(
                "readindex.cache_addresses:CacheAddresses.take",
                "self._next = address + 1",
                "self._next = (address + 1) % 8",
            ),
            Edit(
                "readindex.memory_cache:MemoryCache.insert",
                'assert address not in self._known, f"address {address} is used twice"',
                "self.delete((address,))",
            ),
        ),
        Hunt(workload="readers", settings=_LITTLE_MEMORY, cycles=_LONG),
    ),
    Mutant(
        "lost-block-read-as-zeros",
        "4.4 The cache is a throw-away: the engine notices and serves the right bytes "
        "from elsewhere.",
        "A block that the cache has lost is served as zeros.",
        (
            Edit(
                "readindex.cached_blocks:CachedBlocks.read",
                "if block is None or len(block) != extent.length:",
                "if block is None:\n    block = bytes(extent.length)\nif len(block) != "
                "extent.length:",
            ),
        ),
        Hunt(workload="readers", settings=_LITTLE_MEMORY, rates={"cache.block.lost": 0.2}),
    ),
    Mutant(
        "evicted-and-not-refilled",
        "4.4 Bytes not yet in Tier 2 are never lost to eviction: they can be read back "
        "from Tier 1.",
        "Un-flushed bytes that memory and cache have lost are not searched in the log.",
        (
            Edit(
                "segmentstore.log_rescan:LogRescan.run",
                "self._offer(record, sought)",
                "pass",
            ),
        ),
        Hunt(
            workload="readers",
            settings=_LITTLE_MEMORY,
            rates={"cache.wiped": 0.1, "cache.insert.refused": 0.2},
        ),
    ),
    Mutant(
        "truncated-bytes-given-out",
        "4.1 0 <= StartOffset; truncated never returns.",
        "A read below the start offset is answered if the bytes are still at hand.",
        (
            Edit(
                "readindex.places:Places.present", "if offset < segment.start_offset:", "if False:"
            ),
        ),
        Hunt(workload="readers", settings={"tail_bytes_max": 1 << 20}, cycles=_LONG),
    ),
    Mutant(
        "merged-bytes-at-the-wrong-place",
        "4.4 Never returns wrong bytes: what is held of a merged source moves with it.",
        "What memory holds of a source keeps its place when the source is linked into its target.",
        (
            Edit(
                "readindex.cache_manager:CacheManager.move_segment",
                "start, end = extent.start_offset + offset, extent.end_offset + offset",
                "start, end = extent.start_offset, extent.end_offset",
            ),
        ),
        Hunt(workload="lifecycle", settings={**BUSY, "tail_bytes_max": 1 << 20}),
    ),
    Mutant(
        "merged-bytes-looked-for-elsewhere",
        "4.4 Bytes not yet in Tier 2 are never lost: a merged source's are read by its own id.",
        "A read through the target searches a source's bytes as far from its beginning "
        "as they lie in the target.",
        (Edit("readindex.places:Places.locate", "offset -= merge.offset", "offset -= 0"),),
        Hunt(
            workload="lifecycle",
            settings={
                "flush_age_s": 1000.0,
                "flush_bytes": 20_000,
                "object_bytes": 20_000,
                "upload_bytes_max": 20_000,
            },
        ),
    ),
    Mutant(
        "refilled-over-what-is-there",
        "4.4 Bytes are inserted around what is there, never over it.",
        "Bytes that a read brings are put over those that are held already.",
        (
            Edit(
                "readindex.segment_read_index:SegmentReadIndex.insert_around",
                "self.gaps(offset, offset + len(data))",
                "[(offset, offset + len(data))]",
            ),
        ),
        Hunt(
            workload="readers",
            settings=_LITTLE_MEMORY,
            rates={"cache.block.lost": 0.2, "cache.insert.refused": 0.2},
        ),
    ),
)
