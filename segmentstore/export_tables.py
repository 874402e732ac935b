"""The tables of an export, made of a container's catalog: read in portions, made columns in a
thread.

The catalog is as of one sequence number, and so are the tables. No more than a portion is there as
Python's objects, and nothing is decoded on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Final, TypeAlias

from durablelog.catalog.catalog_errors import catalog_error
from durablelog.catalog.catalog_keys import (
    CHUNK_PAGES,
    ChunkPageKey,
    GarbageKey,
    MetadataFormatError,
    ObjectKey,
    SegmentIdKey,
    garbage_range,
    object_range,
    segment_range,
)
from durablelog.catalog.catalog_records import (
    SegmentRecord,
    decode_chunk_page,
    decode_garbage,
    decode_object,
    decode_segment,
)
from durablelog.catalog.key_ranges import StoreKeyRange, prefix_range
from durablelog.catalog.key_store import KeyPair, KeySnapshot, KeyStoreError
from durablelog.catalog.segment_loading import decoded, decoded_key
from segmentstore.contracts.chunks import ChunkRecord

if TYPE_CHECKING:
    from tier2.catalog.catalog_snapshots import EncodedTable
    from tier2.catalog.catalog_tables import TablesBuilder

RECORDS_OF_A_PORTION: Final = 2048
"""Read and decoded together, of small records."""
PAGES_OF_A_PORTION: Final = 32
"""The same of pages of chunks: some thousand chunks."""

ReleaseEnds: TypeAlias = dict[int, int]
"""By segment id: its chunks that end at or below are only still to be released."""
Add: TypeAlias = "Callable[[TablesBuilder, Sequence[KeyPair], ReleaseEnds], None]"


async def encode_stored(
    snapshot: KeySnapshot, container_id: int, executor: Executor
) -> dict[str, EncodedTable]:
    """The tables of everything in a catalog, encoded. O(everything), in the executor's thread.

    Raises DataCorruptionError, TierUnavailableError.
    """
    run = partial(asyncio.get_running_loop().run_in_executor, executor)
    try:
        builder, release_ends = await run(_new_builder), ReleaseEnds()
        for keys, limit, add in _TABLES:
            rest: StoreKeyRange | None = keys
            while rest is not None:
                pairs, rest = await snapshot.scan(rest, limit)
                if pairs:
                    await run(add, builder, pairs, release_ends)
        return await run(_encode, builder)
    except (KeyStoreError, MetadataFormatError) as error:
        raise catalog_error(container_id, error) from error


# --- in the thread --------------------------------------------------------------------------------


def _new_builder() -> TablesBuilder:
    # Only who exports pays for it, and not on the loop.
    from tier2.catalog.catalog_tables import TablesBuilder  # noqa: PLC0415

    return TablesBuilder()


def _encode(builder: TablesBuilder) -> dict[str, EncodedTable]:
    from tier2.catalog.catalog_snapshots import encode_tables  # noqa: PLC0415 - as above

    try:
        tables = builder.build()
    except ValueError as error:
        raise MetadataFormatError(str(error)) from error
    return encode_tables(tables)


def _add_objects(builder: TablesBuilder, pairs: Sequence[KeyPair], _: ReleaseEnds) -> None:
    found = [decode_object(decoded_key(ObjectKey, key).name, value) for key, value in pairs]
    builder.add_live(
        [each.record for each in found],
        [each.live_bytes for each in found],
        [each.live_chunks for each in found],
    )


def _add_garbage(builder: TablesBuilder, pairs: Sequence[KeyPair], _: ReleaseEnds) -> None:
    found = [decode_garbage(decoded_key(GarbageKey, key), value) for key, value in pairs]
    builder.add_garbage([each.record for each in found], [each.unreferenced_ms for each in found])


def _add_segments(
    builder: TablesBuilder, pairs: Sequence[KeyPair], release_ends: ReleaseEnds
) -> None:
    there = [
        decode_segment(decoded_key(SegmentIdKey, key).segment_id, value) for key, value in pairs
    ]
    for each in there:
        if each.releasing:
            release_ends[each.segment_id] = each.length if each.deleted else each.start_offset
    found = [each for each in there if not each.deleted]
    columns: dict[str, Sequence[object]] = {
        name: list(map(field, found)) for name, field in _FIELDS.items()
    }
    columns["name"] = [each.name if each.merged_into is None else None for each in found]
    builder.add_segments(columns)


def _add_pages(builder: TablesBuilder, pairs: Sequence[KeyPair], release_ends: ReleaseEnds) -> None:
    ids: list[int] = []
    chunks: list[ChunkRecord] = []
    for key, value in pairs:
        page = decoded_key(ChunkPageKey, key)
        found = decoded(decode_chunk_page, page, value)
        end = release_ends.get(page.segment_id)
        if end is not None:
            builder.add_released([each for each in found if each.end_offset <= end])
            found = [each for each in found if each.end_offset > end]
        ids += [page.segment_id] * len(found)
        chunks += found
    builder.add_chunks(ids, chunks)


_FIELDS: Final = {name: itemgetter(place) for place, name in enumerate(SegmentRecord._fields)}
_TABLES: Final[Sequence[tuple[StoreKeyRange, int, Add]]] = (
    (object_range(), RECORDS_OF_A_PORTION, _add_objects),
    (garbage_range(), RECORDS_OF_A_PORTION, _add_garbage),
    (segment_range(), RECORDS_OF_A_PORTION, _add_segments),
    (prefix_range(CHUNK_PAGES), PAGES_OF_A_PORTION, _add_pages),
)
