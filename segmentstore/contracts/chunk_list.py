"""The chunks of one segment, in pages: what is looked up, changed or encoded is a page, not a list.

Invariants, checked by `ChunkList.check`:

- chunks are sorted by start offset and contiguous: each begins where the one before ends;
- a page has 1 to `page_chunks` chunks. Its key is the start offset of its first chunk;
- the records of a page never change, only the page does: it is exchanged for another. The last page
  alone grows, at its end. So a thread may read a page that it was given with its length.

A replacement inside a page keeps its key, since it covers the same bytes. The key changes only
where the page's first bytes leave it: they are truncated, or replaced together with bytes of the
page before.

The last page is kept in the list itself: most segments have no other.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, pairwise
from operator import attrgetter, eq, itemgetter
from typing import Final, TypeAlias

from segmentstore.contracts.chunks import ChunkRecord

PAGE_CHUNKS_MAX: Final = 128
"""Chunks in a page, at most."""

PageContent: TypeAlias = tuple[list[ChunkRecord], int]
"""A page at one moment: its first so many records, which never change."""

_key_of: Final = attrgetter("key")
_records_of: Final = attrgetter("records")
_start_of: Final = itemgetter(ChunkRecord._fields.index("start_offset"))
_end_of: Final = attrgetter("end_offset")


_EMPTY: Final[list[ChunkRecord]] = []
"""Shared by all lists without chunks, and never changed."""


class _Page:
    """Chunks that follow one another, and their encoded form once it was asked for."""

    __slots__ = ("encoded", "key", "records")

    def __init__(self, records: list[ChunkRecord], encoded: bytes | None = None) -> None:
        self.records = records
        self.key = records[0].start_offset
        self.encoded = encoded


class _EarlierPages:
    """All pages but the last one, and what is kept only of lists with several pages."""

    __slots__ = ("chunks", "last_encoded", "pages")

    def __init__(self, pages: list[_Page], chunks: int) -> None:
        self.pages = pages
        self.chunks = chunks
        """In all of them."""
        self.last_encoded: bytes | None = None
        """Of the page after them."""


class ChunkList:
    """Chunks of one segment in the order of their offsets. Offsets are bytes of the segment.

    Changes during an iteration are not allowed.
    """

    __slots__ = ("_earlier", "_last")

    page_chunks = PAGE_CHUNKS_MAX

    def __init__(self, chunks: Iterable[ChunkRecord] = ()) -> None:
        self._last = _EMPTY
        self._earlier: _EarlierPages | None = None
        """None unless there are at least two pages."""
        self.extend(chunks)

    # --- reading ----------------------------------------------------------------------------------

    def __len__(self) -> int:
        earlier = self._earlier
        return len(self._last) if earlier is None else earlier.chunks + len(self._last)

    def __bool__(self) -> bool:
        return bool(self._last)

    def __iter__(self) -> Iterator[ChunkRecord]:
        earlier = self._earlier
        if earlier is None:
            return iter(self._last)
        return chain(chain.from_iterable(map(_records_of, earlier.pages)), self._last)

    def __eq__(self, other: object) -> bool:
        """Whether both have the same chunks, in whatever pages. O(chunks)."""
        if not isinstance(other, ChunkList):
            return NotImplemented
        return len(self) == len(other) and all(map(eq, self, other))

    __hash__ = None  # type: ignore[assignment] # it changes

    def __repr__(self) -> str:
        if not self:
            return "<no chunks>"
        return f"<{len(self)} chunks of [{self.first.start_offset},{self.last.end_offset})>"

    @property
    def first(self) -> ChunkRecord:
        """The chunk with the smallest offset. Raises IndexError if there is none."""
        earlier = self._earlier
        return self._last[0] if earlier is None else earlier.pages[0].records[0]

    @property
    def last(self) -> ChunkRecord:
        """The chunk with the largest offset. Raises IndexError if there is none."""
        return self._last[-1]

    @property
    def paged(self) -> bool:
        """Whether there are at least two pages: then encoded forms of pages are kept."""
        return self._earlier is not None

    @property
    def page_keys(self) -> list[int]:
        """The keys of all pages, ascending."""
        if not self._last:
            return []
        earlier = [] if self._earlier is None else self._earlier.pages
        return [*map(_key_of, earlier), self._last[0].start_offset]

    @property
    def last_page(self) -> tuple[int, PageContent]:
        """The last page, with its key. Raises IndexError if there is none."""
        last = self._last
        return last[0].start_offset, (last, len(last))

    def page_contents(self) -> list[tuple[int, PageContent]]:
        """All pages with their keys, ascending. O(pages)."""
        return [
            (records[0].start_offset, (records, len(records))) for records in self._pages_from(-1)
        ]

    def find(self, offset: int) -> ChunkRecord | None:
        """The chunk that holds `offset`, if there is one. O(log chunks)."""
        records, earlier = self._last, self._earlier
        if earlier is not None and offset < records[0].start_offset:
            page = bisect_right(earlier.pages, offset, key=_key_of) - 1
            if page < 0:
                return None
            records = earlier.pages[page].records
        index = bisect_right(records, offset, key=_start_of) - 1
        if index < 0:
            return None
        chunk = records[index]
        return chunk if offset < chunk.start_offset + chunk.length else None

    def between(self, start_offset: int, end_offset: int) -> Iterator[ChunkRecord]:
        """The chunks that hold a byte of [start_offset, end_offset), in order.

        O(log chunks + those).
        """
        for records in self._pages_from(start_offset):
            if records[0].start_offset >= end_offset:
                return
            first = bisect_right(records, start_offset, key=_end_of)
            yield from records[first : bisect_left(records, end_offset, key=_start_of)]

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
        found = []
        for page in earlier.pages:
            if page.encoded is None:
                page.encoded = encode(page.records)
            found.append(page.encoded)
        if earlier.last_encoded is None:
            earlier.last_encoded = encode(last)
        found.append(earlier.last_encoded)
        return found

    def check(self) -> None:
        """Assert the invariants. O(chunks)."""
        if not self._last:
            assert self._earlier is None, self
            assert not _EMPTY, _EMPTY
            return
        position = None
        for chunk in self:
            assert chunk.length > 0, (self, chunk)
            assert position is None or chunk.start_offset == position, (self, chunk)
            position = chunk.end_offset
        earlier = self._earlier
        if earlier is not None:
            assert earlier.pages, self
            assert earlier.chunks == sum(len(page.records) for page in earlier.pages), self
            assert all(page.key == page.records[0].start_offset for page in earlier.pages), self
        sizes = [len(records) for records in self._pages_from(-1)]
        assert all(1 <= size <= self.page_chunks for size in sizes), (self, sizes)
        assert not _EMPTY, _EMPTY

    # --- changing ---------------------------------------------------------------------------------

    def append(self, chunk: ChunkRecord) -> None:
        """Add the chunk that follows the last one. O(1)."""
        last = self._last
        if not last or len(last) >= self.page_chunks:
            self._begin_page([])
            last = self._last
        last.append(chunk)
        if self._earlier is not None:
            self._earlier.last_encoded = None

    def extend(self, chunks: Iterable[ChunkRecord]) -> None:
        """Add chunks that follow the last one. O(those)."""
        for chunk in chunks:
            self.append(chunk)

    def extend_pages(self, pages: Iterable[tuple[list[ChunkRecord], bytes | None]]) -> None:
        """Add chunks that follow the last one, in pages of their own with their encoded forms, if
        they are known.

        No page is empty, or larger than a page may be. The lists belong to this one from now on.
        """
        before = None
        for chunks, encoded in pages:
            assert 0 < len(chunks) <= self.page_chunks, len(chunks)
            self._begin_page(chunks, before)
            before = encoded
        if self._earlier is not None and before is not None:
            self._earlier.last_encoded = before

    def remove_below(
        self, offset: int, changed: dict[int, PageContent | None] | None = None
    ) -> list[ChunkRecord]:
        """Remove the chunks that end at or below `offset`; return them.

        `changed` receives the new contents of pages by key, None for removed pages. O(those), and
        one move of the pointers to the other pages.
        """
        if not self._last or self.first.end_offset > offset:
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
                pages[0] = _Page(records[cut:])
            else:
                del before[whole:]
        _record_change(changed, before, pages[: len(before) - whole])
        self._put_pages(pages, left - len(removed))
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
        first = bisect_right(pages, old[0].start_offset, key=_key_of) - 1
        end = bisect_left(pages, old[-1].end_offset, key=_key_of)
        records = [chunk for page in pages[first:end] for chunk in page.records]
        place = bisect_left(records, old[0].start_offset, key=_start_of)
        records[place : place + len(old)] = new
        first, end, records = self._join(pages, first, end, records)
        split = self._split(records)
        _record_change(changed, pages[first:end], split)
        pages[first:end] = split
        self._put_pages(pages, total)
        return True

    # --- pages ------------------------------------------------------------------------------------

    def _pages_from(self, offset: int) -> Iterator[list[ChunkRecord]]:
        """The records of the pages, from the one that may hold `offset` on."""
        last, earlier = self._last, self._earlier
        if earlier is not None and offset < last[0].start_offset:
            pages = earlier.pages
            for index in range(max(0, bisect_right(pages, offset, key=_key_of) - 1), len(pages)):
                yield pages[index].records
        if last:
            yield last

    def _begin_page(self, records: list[ChunkRecord], encoded: bytes | None = None) -> None:
        """Make `records` the last page; `encoded` is of the page that was the last one."""
        last, earlier = self._last, self._earlier
        if last:
            if earlier is None:
                earlier = self._earlier = _EarlierPages([], 0)
            earlier.pages.append(_Page(last, encoded or earlier.last_encoded))
            earlier.chunks += len(last)
            earlier.last_encoded = None
        self._last = records

    def _take_pages(self) -> list[_Page]:
        """All pages, to be changed and put back by `_put_pages`. The list is not empty."""
        earlier = self._earlier
        if earlier is None:
            return [_Page(self._last)]
        earlier.pages.append(_Page(self._last, earlier.last_encoded))
        return earlier.pages

    def _put_pages(self, pages: list[_Page], chunks: int) -> None:
        """Take over what became of the pages; `chunks` are in them."""
        if not pages:
            self._last, self._earlier = _EMPTY, None
            return
        last = pages.pop()
        self._last = last.records
        if not pages:
            self._earlier = None
            return
        self._earlier = _EarlierPages(pages, chunks - len(self._last))
        self._earlier.last_encoded = last.encoded

    def _join(
        self, pages: Sequence[_Page], first: int, end: int, records: list[ChunkRecord]
    ) -> tuple[int, int, list[ChunkRecord]]:
        """Take a neighbour in where both fill no more than half a page.

        So consolidation does not leave a page for every few chunks, and the page that was joined is
        not soon split again.
        """
        room = self.page_chunks // 2 - len(records)
        if first and len(pages[first - 1].records) <= room:
            return first - 1, end, [*pages[first - 1].records, *records]
        if end < len(pages) and len(pages[end].records) <= room:
            return first, end + 1, [*records, *pages[end].records]
        return first, end, records

    def _split(self, records: list[ChunkRecord]) -> list[_Page]:
        """As few pages as hold them, about equally full."""
        count = -(-len(records) // self.page_chunks)
        borders = [len(records) * number // count for number in range(count + 1)]
        return [_Page(records[start:end]) for start, end in pairwise(borders)]

    def _check_same_range(self, old: Sequence[ChunkRecord], new: Sequence[ChunkRecord]) -> None:
        """Every byte of the segment stays at its offset, with nothing missing and nothing twice."""
        position = old[0].start_offset
        for chunk in new:
            assert chunk.length > 0, (self, chunk)
            assert chunk.start_offset == position, (self, chunk)
            position = chunk.end_offset
        assert position == old[-1].end_offset, (self, old, new)


def _record_change(
    changed: dict[int, PageContent | None] | None, before: Sequence[_Page], after: Sequence[_Page]
) -> None:
    """Put into `changed` that pages were exchanged for others."""
    if changed is not None:
        changed.update((page.key, None) for page in before)
        changed.update((page.key, (page.records, len(page.records))) for page in after)
