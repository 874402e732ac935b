"""Pages of a few chunks and attributes, so that segments of a simulated store have several; and
slices of a few chunks, so that deletions have several.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from durablelog.chunk_slices import Slices
from segmentstore.contracts.attribute_table import AttributeTable
from segmentstore.contracts.chunk_list import ChunkList
from segmentstore.contracts.paged_chunks import PagedChunks

PAGE_ENTRIES: Final = 3
SLICE_CHUNKS: Final = 6
"""Two pages: deletions of a partial segment at once are common as well."""
SLICE_LINKED: Final = 2
"""Less than many sources of merges have."""


@contextmanager
def pages_of(settings: Mapping[str, Any]) -> Iterator[None]:
    """Tiny pages meanwhile where metadata are bounded in memory: else nothing would leave it.

    For the whole process.
    """
    if "active_metadata_bytes_max" not in settings:
        yield
        return
    pages = ChunkList.page_chunks, AttributeTable.PAGE_MAX
    slices = Slices.chunks_max, Slices.linked_max
    PagedChunks.page_chunks = AttributeTable.PAGE_MAX = PAGE_ENTRIES
    Slices.chunks_max, Slices.linked_max = SLICE_CHUNKS, SLICE_LINKED
    try:
        yield
    finally:
        PagedChunks.page_chunks, AttributeTable.PAGE_MAX = pages
        Slices.chunks_max, Slices.linked_max = slices
