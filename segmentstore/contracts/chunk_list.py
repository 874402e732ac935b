"""The chunks of one segment, in pages: what is looked up, changed or encoded is a page, not a list.

`paged_chunks.py` has the invariants of pages, and says which of them are in memory.

A replacement inside a page keeps its key, since it covers the same bytes. The key changes only
where the page's first bytes leave it: they are truncated, or replaced together with bytes of the
page before.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, pairwise
from operator import attrgetter, eq, itemgetter
from typing import Final

from segmentstore.contracts.chunk_pages import ChunkPage, key_of
from segmentstore.contracts.chunks import ChunkRecord
from segmentstore.contracts.paged_chunks import (
    PAGE_CHUNKS_MAX,
    PageContent,
    PagedChunks,
    UnknownChunksError,
)

__all__ = ["NO_CHUNKS", "PAGE_CHUNKS_MAX", "ChunkList", "PageContent", "UnknownChunksError"]

_records_of: Final = attrgetter("records")
_start_of: Final = itemgetter(ChunkRecord._fields.index("start_offset"))
_end_of: Final = attrgetter("end_offset")


class ChunkList(PagedChunks):
    """Chunks of one segment in the order of their offsets. Offsets are bytes of the segment.

    Changes during an iteration are not allowed.
    """

    __slots__ = ()

    # --- reading ----------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[ChunkRecord]:
        earlier = self._earlier
        if earlier is None:
            return iter(self._last)
        self._require_whole()
        return chain(chain.from_iterable(map(_records_of, earlier.pages)), self._last)

    def __eq__(self, other: object) -> bool:
        """Whether both have the same chunks, in whatever pages. O(chunks)."""
        if not isinstance(other, ChunkList):
            return NotImplemented
        self._require_whole()
        other._require_whole()
        return len(self) == len(other) and all(map(eq, self, other))

    __hash__ = None  # type: ignore[assignment] # it changes

    def __repr__(self) -> str:
        if not self:
            return "<no chunks>"
        partial = "" if self.whole else ", partial"
        return f"<{len(self)} chunks of [{self.start_offset},{self.last.end_offset}){partial}>"

    @property
    def first(self) -> ChunkRecord:
        """The chunk with the smallest offset. Raises IndexError if there is none."""
        earlier = self._earlier
        if earlier is None:
            return self._last[0]
        if earlier.gaps is not None:
            self._require(earlier.start_offset, earlier.start_offset + 1)
        return earlier.pages[0].records[0]

    @property
    def last(self) -> ChunkRecord:
        """The chunk with the largest offset. Raises IndexError if there is none."""
        return self._last[-1]

    def find(self, offset: int) -> ChunkRecord | None:
        """The chunk that holds `offset`, if there is one. O(log chunks)."""
        records, earlier = self._last, self._earlier
        if earlier is not None and offset < records[0].start_offset:
            page = bisect_right(earlier.pages, offset, key=key_of) - 1
            if page < 0:
                self._require(offset, offset + 1)
                return None
            records = earlier.pages[page].records
        index = bisect_right(records, offset, key=_start_of) - 1
        if index < 0:
            return None
        chunk = records[index]
        if offset < chunk.start_offset + chunk.length:
            return chunk
        if records is not self._last:
            self._require(offset, offset + 1)
        return None

    def between(self, start_offset: int, end_offset: int) -> Iterator[ChunkRecord]:
        """The chunks that hold a byte of [start_offset, end_offset), in order.

        O(log chunks + those).
        """
        self._require(start_offset, end_offset)
        return self._between(start_offset, end_offset)

    def _between(self, start_offset: int, end_offset: int) -> Iterator[ChunkRecord]:
        for records in self._pages_from(start_offset):
            if records[0].start_offset >= end_offset:
                return
            first = bisect_right(records, start_offset, key=_end_of)
            yield from records[first : bisect_left(records, end_offset, key=_start_of)]

    def known_keys(self, start_offset: int, end_offset: int) -> list[int]:
        """The keys of the pages in memory with a byte of [start_offset, end_offset), ascending.

        O(log pages + those).
        """
        found = []
        for records in self._pages_from(start_offset):
            if records[0].start_offset >= end_offset:
                break
            if records[-1].end_offset > start_offset:
                found.append(records[0].start_offset)
        return found

    def reach(self, end_offset: int, count_max: int) -> tuple[int, int]:
        """How many chunks that end at or below `end_offset` are in memory, from the first one on up
        to a gap; at most `count_max`. And where the last of them ends, or the first one begins.

        O(pages of those). Raises IndexError if there is no chunk.
        """
        count, end = 0, self.start_offset
        for records in self._pages_from(-1):
            if records[0].start_offset != end:
                break
            taken = min(bisect_right(records, end_offset, key=_end_of), count_max - count)
            if not taken:
                break
            count, end = count + taken, records[taken - 1].end_offset
            if taken < len(records):
                break
        return count, end

    def holds(self, chunks: Sequence[ChunkRecord]) -> bool:
        """Whether exactly these are the chunks between the first and the last of them.

        O(log of all + those).
        """
        found = self.between(chunks[0].start_offset, chunks[-1].end_offset)
        return tuple(found) == tuple(chunks)

    def encoded_pages(self, encode: Callable[[Sequence[ChunkRecord]], bytes]) -> list[bytes]:
        """All pages by `encode`, which is called for those that changed since the last time.

        Of a single page nothing is kept: the segment's record, encoded, holds it already.
        """
        earlier, last = self._earlier, self._last
        if earlier is None:
            return [encode(last)] if last else []
        self._require_whole()
        found = []
        for page in earlier.pages:
            if page.encoded is None:
                page.encoded = encode(page.records)
            found.append(page.encoded)
        if earlier.last_encoded is None:
            earlier.last_encoded = encode(last)
        found.append(earlier.last_encoded)
        return found

    # --- changing ---------------------------------------------------------------------------------

    def remove_below(
        self, offset: int, changed: dict[int, PageContent | None] | None = None
    ) -> list[ChunkRecord]:
        """Remove the chunks that end at or below `offset`; return them.

        `changed` receives the new contents of pages by key, None for removed pages. O(those), and
        one move of the pointers to the other pages. Chunks with a byte below `offset` must be in
        memory.
        """
        if not self._last or self.start_offset >= offset:
            return []
        self._require(self.start_offset, offset)
        if self.first.end_offset > offset:
            return []
        left = len(self)
        pages = self._take_pages()
        removed: list[ChunkRecord] = []
        whole = 0
        while whole < len(pages) and pages[whole].records[-1].end_offset <= offset:
            removed += pages[whole].records
            whole += 1
        before = pages[: whole + 1]
        del pages[:whole]
        if pages:
            records = pages[0].records
            cut = bisect_right(records, offset, key=_end_of)
            if cut:
                removed += records[:cut]
                pages[0] = ChunkPage(records[cut:])
            else:
                del before[whole:]
        _record_change(changed, before, pages[: len(before) - whole])
        self._put_pages(pages, left - len(removed))
        if self._earlier is not None and self._earlier.gaps is not None:
            self._earlier.gaps.start_offset = removed[-1].end_offset
        return removed

    def replace(
        self,
        old: Sequence[ChunkRecord],
        new: Sequence[ChunkRecord],
        changed: dict[int, PageContent | None] | None = None,
    ) -> bool:
        """Put `new` where exactly `old` is; without it change nothing and return False.

        `new` must cover the same bytes, none missing and none twice. `changed` receives the
        new contents of pages by key, None for removed pages. O(log chunks + `old` + `new`), and one
        move of the pointers to the other pages if their number changes.
        """
        if not self.holds(old):
            return False
        self._check_same_range(old, new)
        total = len(self) - len(old) + len(new)
        pages = self._take_pages()
        first = bisect_right(pages, old[0].start_offset, key=key_of) - 1
        end = bisect_left(pages, old[-1].end_offset, key=key_of)
        records = [chunk for page in pages[first:end] for chunk in page.records]
        place = bisect_left(records, old[0].start_offset, key=_start_of)
        records[place : place + len(old)] = new
        first, end, records = _join_small(pages, first, end, records, self.page_chunks)
        split = _split_even(records, self.page_chunks)
        _record_change(changed, pages[first:end], split)
        pages[first:end] = split
        self._put_pages(pages, total)
        return True

    def _check_same_range(self, old: Sequence[ChunkRecord], new: Sequence[ChunkRecord]) -> None:
        """Every byte of the segment stays at its offset, with nothing missing and nothing twice."""
        position = old[0].start_offset
        for chunk in new:
            assert chunk.length > 0, (self, chunk)
            assert chunk.start_offset == position, (self, chunk)
            position = chunk.end_offset
        assert position == old[-1].end_offset, (self, old, new)


class _NoChunks(ChunkList):
    """A list that stays empty."""

    __slots__ = ()

    def _begin_page(self, records: list[ChunkRecord], encoded: bytes | None = None) -> None:
        raise AssertionError(f"a list that segments share does not grow by {records}, {encoded!r}")


NO_CHUNKS: Final[ChunkList] = _NoChunks()
"""Shared by all segments that have none: a list of its own takes 48 bytes of each."""


def _record_change(
    changed: dict[int, PageContent | None] | None,
    before: Sequence[ChunkPage],
    after: Sequence[ChunkPage],
) -> None:
    """Put into `changed` that pages were exchanged for others."""
    if changed is not None:
        changed.update((page.key, None) for page in before)
        changed.update((page.key, (page.records, len(page.records))) for page in after)


def _join_small(
    pages: Sequence[ChunkPage], first: int, end: int, records: list[ChunkRecord], page_chunks: int
) -> tuple[int, int, list[ChunkRecord]]:
    """Put a neighbour of pages [first, end) to `records`, which take their place, where both fill
    no more than half a page.

    So consolidation does not leave a page for every few chunks, and the page that was joined is not
    soon split again. A page behind a gap is no neighbour.
    """
    room = page_chunks // 2 - len(records)
    if first:
        before = pages[first - 1]
        if len(before.records) <= room and before.end_offset == records[0].start_offset:
            return first - 1, end, [*before.records, *records]
    if end < len(pages):
        after = pages[end]
        if len(after.records) <= room and after.key == records[-1].end_offset:
            return first, end + 1, [*records, *after.records]
    return first, end, records


def _split_even(records: list[ChunkRecord], page_chunks: int) -> list[ChunkPage]:
    """As few pages as hold them, about equally full."""
    count = -(-len(records) // page_chunks)
    borders = [len(records) * number // count for number in range(count + 1)]
    return [ChunkPage(records[start:end]) for start, end in pairwise(borders)]
