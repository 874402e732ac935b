"""The pages of one segment's chunks: how they grow, and which of them are in memory.

Invariants, checked by `PagedChunks.check`:

- chunks are sorted by start offset and contiguous: each begins where the one before ends;
- a page has 1 to `page_chunks` chunks. Its key is the start offset of its first chunk;
- the records of a page never change, only the page does: it is exchanged for another. The last page
  alone grows, at its end. So a thread may read a page that it was given with its length;
- *partial* chunks have gaps: there the catalog alone has the pages. The number of chunks, where
  they begin, and the last page are always known.

The last page is kept in the object itself: most segments have no other.

Nothing here loads a page. What needs one that is in a gap raises UnknownChunksError and changes
nothing: the caller asks `gaps` before, and has `learn` take the pages.

Pure: no await, no clock, no I/O.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Final, Self, TypeAlias

from segmentstore.contracts.chunk_pages import (
    ChunkGaps,
    ChunkPage,
    EarlierPages,
    follow_one_another,
    key_of,
)
from segmentstore.contracts.chunks import ChunkRecord

PAGE_CHUNKS_MAX: Final = 128
"""Chunks in a page, at most."""

PageContent: TypeAlias = tuple[list[ChunkRecord], int]
"""A page at one moment: its first so many records, which never change."""

_EMPTY: Final[list[ChunkRecord]] = []
"""Shared by all that have no chunks, and never changed."""


class UnknownChunksError(LookupError):
    """Chunks were needed that the catalog has and memory has not: an error of the caller."""

    def __init__(self, start_offset: int, end_offset: int) -> None:
        super().__init__(f"the chunks of [{start_offset},{end_offset}) are not in memory")
        self.start_offset = start_offset
        self.end_offset = end_offset
        """Of the first stretch that was needed and is in a gap."""


class PagedChunks:
    """Chunks of one segment in pages. `ChunkList` finds and changes them."""

    __slots__ = ("_earlier", "_last")

    page_chunks = PAGE_CHUNKS_MAX

    def __init__(self, chunks: Iterable[ChunkRecord] = ()) -> None:
        self._last = _EMPTY
        self._earlier: EarlierPages | None = None
        """None unless there are at least two pages, in memory or not."""
        for chunk in chunks:
            self.append(chunk)

    @classmethod
    def of_page(cls, records: list[ChunkRecord]) -> Self:
        """A list of the chunks in one page, which belong to it from now on."""
        assert 0 < len(records) <= cls.page_chunks, len(records)
        chunks = cls()
        chunks._last = records
        return chunks

    @classmethod
    def partial(cls, count: int, start_offset: int, last_page: list[ChunkRecord]) -> Self:
        """A list of `count` chunks from `start_offset` on, of which `last_page` is known.

        It belongs to the list from now on. Raises ValueError if they do not go together.
        """
        chunks = cls()
        before = count - len(last_page)
        if not last_page:
            if count:
                raise ValueError(f"none of {count} chunks are in the last page")
            return chunks
        first = last_page[0].start_offset
        chunks.extend_pages([(chunks._checked(first, last_page).records, None)])
        length = first - start_offset
        if not (0 < before <= length or before == length == 0):
            raise ValueError(f"{before} chunks are to be in [{start_offset},{first})")
        if before:
            gaps = ChunkGaps(start_offset, before, length)
            chunks._earlier = EarlierPages([], before, gaps)
        return chunks

    def __len__(self) -> int:
        earlier = self._earlier
        return len(self._last) if earlier is None else earlier.chunks + len(self._last)

    def __bool__(self) -> bool:
        return bool(self._last)

    @property
    def whole(self) -> bool:
        """Whether all pages are in memory."""
        return self._earlier is None or self._earlier.gaps is None

    @property
    def known_count(self) -> int:
        """Chunks in memory. O(1)."""
        earlier = self._earlier
        return len(self) - (0 if earlier is None or earlier.gaps is None else earlier.gaps.chunks)

    @property
    def start_offset(self) -> int:
        """Where the first chunk begins. Raises IndexError if there is none."""
        earlier = self._earlier
        return self._last[0].start_offset if earlier is None else earlier.start_offset

    @property
    def paged(self) -> bool:
        """Whether there are at least two pages: then encoded forms of pages are kept."""
        return self._earlier is not None

    @property
    def page_keys(self) -> list[int]:
        """The keys of all pages, ascending."""
        self._require_whole()
        if not self._last:
            return []
        earlier = [] if self._earlier is None else self._earlier.pages
        return [*map(key_of, earlier), self._last[0].start_offset]

    @property
    def last_page(self) -> tuple[int, PageContent]:
        """The last page, with its key. Raises IndexError if there is none."""
        last = self._last
        return last[0].start_offset, (last, len(last))

    def page_contents(self) -> list[tuple[int, PageContent]]:
        """All pages with their keys, ascending. O(pages)."""
        self._require_whole()
        return self.known_pages()

    def known_pages(self) -> list[tuple[int, PageContent]]:
        """The pages in memory with their keys, ascending. O(those)."""
        return [
            (records[0].start_offset, (records, len(records))) for records in self._pages_from(-1)
        ]

    def check(self) -> None:
        """Assert the invariants. O(chunks in memory)."""
        assert not _EMPTY, _EMPTY
        last, earlier = self._last, self._earlier
        if not last:
            assert earlier is None, self
            return
        assert follow_one_another(last, last[0].start_offset), (self, last)
        if earlier is not None:
            earlier.check(last[0].start_offset)
        sizes = [len(records) for records in self._pages_from(-1)]
        assert all(1 <= size <= self.page_chunks for size in sizes), (self, sizes)

    # --- what is in memory ------------------------------------------------------------------------

    def knows(self, start_offset: int, end_offset: int) -> bool:
        """Whether every chunk with a byte of [start_offset, end_offset) is in memory.

        Bytes that no chunk has count as known. O(log pages + those in memory between).
        """
        earlier = self._earlier
        if earlier is None or earlier.gaps is None:
            return True
        found = earlier.unknown(start_offset, end_offset, self._last[0].start_offset)
        return next(found, None) is None

    def gaps(self, start_offset: int, end_offset: int) -> list[tuple[int, int]]:
        """The stretches of [start_offset, end_offset) whose chunks are not in memory, ascending.

        They are cut at both ends, so a chunk may begin before and end behind its stretch.
        """
        earlier = self._earlier
        if earlier is None:
            return []
        return list(earlier.unknown(start_offset, end_offset, self._last[0].start_offset))

    def learn(self, key: int, records: list[ChunkRecord]) -> bool:
        """Put a page as the catalog has it into the gap that it lies in; False if its bytes are
        known, or truncated: memory is newer. They belong to the list from now on.

        Raises ValueError if it is no page, or does not fit. O(page), and one move of the pointers
        to other pages.
        """
        page = self._checked(key, records)
        last, earlier = self._last, self._earlier
        if not last:
            return False
        if page.end_offset > last[-1].end_offset:
            raise ValueError(f"[{key},{page.end_offset}) ends behind {self!r}")
        if earlier is None or self.knows(key, page.end_offset) or earlier.has(key):
            return False
        earlier.learn(page, last[0].start_offset)
        return True

    def forget(self, keys: Iterable[int]) -> None:
        """Make gaps of the pages with these keys: the catalog has them.

        The last page stays, and keys of no page in memory are passed over. O(log pages of each),
        and one pass over the pointers to all.
        """
        if self._earlier is not None:
            self._earlier.forget(keys)

    def _require(self, start_offset: int, end_offset: int) -> None:
        """Raise UnknownChunksError if chunks with a byte of this stretch are in a gap."""
        earlier = self._earlier
        if earlier is not None and earlier.gaps is not None:
            for stretch in earlier.unknown(start_offset, end_offset, self._last[0].start_offset):
                raise UnknownChunksError(*stretch)

    def _require_whole(self) -> None:
        if self._last:
            self._require(self.start_offset, self._last[0].start_offset)

    def _checked(self, key: int, records: list[ChunkRecord]) -> ChunkPage:
        """A page of these records; raises ValueError if it would be none."""
        if not 0 < len(records) <= self.page_chunks:
            raise ValueError(f"a page with {len(records)} chunks")
        if not follow_one_another(records, key):
            raise ValueError(f"the chunks of page {key} do not follow one another from there")
        return ChunkPage(records)

    # --- growing ----------------------------------------------------------------------------------

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

    # --- pages ------------------------------------------------------------------------------------

    def _pages_from(self, offset: int) -> Iterator[list[ChunkRecord]]:
        """The records of the pages in memory, from the one that may hold `offset` on."""
        last, earlier = self._last, self._earlier
        if earlier is not None and offset < last[0].start_offset:
            pages = earlier.pages
            for index in range(max(0, bisect_right(pages, offset, key=key_of) - 1), len(pages)):
                yield pages[index].records
        if last:
            yield last

    def _begin_page(self, records: list[ChunkRecord], encoded: bytes | None = None) -> None:
        """Make `records` the last page; `encoded` is of the page that was the last one."""
        last, earlier = self._last, self._earlier
        if last:
            if earlier is None:
                earlier = self._earlier = EarlierPages([], 0)
            earlier.pages.append(ChunkPage(last, encoded or earlier.last_encoded))
            earlier.chunks += len(last)
            earlier.last_encoded = None
        self._last = records

    def _take_pages(self) -> list[ChunkPage]:
        """All pages in memory, at least one, to be changed and put back by `_put_pages`."""
        earlier = self._earlier
        if earlier is None:
            return [ChunkPage(self._last)]
        earlier.pages.append(ChunkPage(self._last, earlier.last_encoded))
        return earlier.pages

    def _put_pages(self, pages: list[ChunkPage], chunks: int) -> None:
        """Take over what became of the pages; `chunks` are in them and in the gaps."""
        gaps = None if self._earlier is None else self._earlier.gaps
        if not pages:
            self._last, self._earlier = _EMPTY, None
            return
        last = pages.pop()
        self._last = last.records
        if not pages and gaps is None:
            self._earlier = None
            return
        self._earlier = EarlierPages(pages, chunks - len(self._last), gaps)
        self._earlier.last_encoded = last.encoded
