"""The pages of a chunk list before its last one, and the gaps where memory does not have them.

Rules of this file:

- pages are sorted by key and do not overlap. Where one does not begin at the end of the one before
  there is a gap. So gaps take no memory of their own, and neighbouring ones are one;
- a gap consists of whole pages of the catalog. How many is unknown, how many chunks and bytes all
  gaps have together is counted;
- a list without gaps has no `ChunkGaps`.

Pure: no await, no clock, no I/O.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Final

from segmentstore.contracts.chunks import ChunkRecord

key_of: Final = attrgetter("key")


class ChunkPage:
    """Chunks that follow one another, and their encoded form once it was asked for."""

    __slots__ = ("encoded", "key", "records")

    def __init__(self, records: list[ChunkRecord], encoded: bytes | None = None) -> None:
        self.records = records
        self.key = records[0].start_offset
        self.encoded = encoded

    @property
    def end_offset(self) -> int:
        """Where its last chunk ends, exclusive."""
        return self.records[-1].end_offset


class ChunkGaps:
    """What is known of the chunks that are not in memory."""

    __slots__ = ("chunks", "length", "start_offset")

    def __init__(self, start_offset: int, chunks: int = 0, length: int = 0) -> None:
        self.start_offset = start_offset
        """Of the list's first chunk, in memory or not."""
        self.chunks = chunks
        """In all gaps."""
        self.length = length
        """Of all gaps, in bytes of the segment."""


class EarlierPages:
    """All pages but the last one, and what is kept only of lists with several pages.

    `last_key`, a parameter of methods, is where the last page begins.
    """

    __slots__ = ("chunks", "gaps", "last_encoded", "pages")

    def __init__(self, pages: list[ChunkPage], chunks: int, gaps: ChunkGaps | None = None) -> None:
        self.pages = pages
        """Those in memory."""
        self.chunks = chunks
        """In all of them, and in the gaps."""
        self.gaps = gaps
        self.last_encoded: bytes | None = None
        """Of the page after them."""

    @property
    def start_offset(self) -> int:
        """Of the first chunk."""
        return self.pages[0].key if self.gaps is None else self.gaps.start_offset

    def unknown(
        self, start_offset: int, end_offset: int, last_key: int
    ) -> Iterator[tuple[int, int]]:
        """The parts of [start_offset, end_offset) that lie in gaps, ascending.

        O(log pages + those between).
        """
        gaps, pages = self.gaps, self.pages
        if gaps is None:
            return
        position, end = max(start_offset, gaps.start_offset), min(end_offset, last_key)
        index = bisect_right(pages, position, key=key_of)
        if index:
            position = max(position, pages[index - 1].end_offset)
        while index < len(pages) and pages[index].key < end:
            if position < pages[index].key:
                yield position, pages[index].key
            position = pages[index].end_offset
            index += 1
        if position < end:
            yield position, end

    def has(self, key: int) -> bool:
        """Whether the page with this key is in memory."""
        index = bisect_left(self.pages, key, key=key_of)
        return index < len(self.pages) and self.pages[index].key == key

    def learn(self, page: ChunkPage, last_key: int) -> None:
        """Put a page into the gap that it lies in. Raises ValueError if it does not fit one."""
        gaps, pages = self.gaps, self.pages
        assert gaps is not None, page.key
        index = bisect_left(pages, page.key, key=key_of)
        low = pages[index - 1].end_offset if index else gaps.start_offset
        high = pages[index].key if index < len(pages) else last_key
        if not low <= page.key < page.end_offset <= high:
            raise ValueError(f"[{page.key},{page.end_offset}) is not in the gap [{low},{high})")
        chunks = gaps.chunks - len(page.records)
        length = gaps.length - (page.end_offset - page.key)
        if not (0 < chunks <= length or chunks == length == 0):
            raise ValueError(
                f"with [{page.key},{page.end_offset}), {chunks} chunks are left for {length} bytes"
            )
        pages.insert(index, page)
        gaps.chunks, gaps.length = chunks, length
        if not chunks:
            self.gaps = None

    def forget(self, keys: Iterable[int]) -> None:
        """Make gaps of the pages with these keys. O(log pages of each), and one pass over the
        pointers to them if there are several.
        """
        pages = self.pages
        found = set()
        for key in keys:
            index = bisect_left(pages, key, key=key_of)
            if index < len(pages) and pages[index].key == key:
                found.add(index)
        if not found:
            return
        gaps = self.gaps
        if gaps is None:
            gaps = self.gaps = ChunkGaps(pages[0].key)
        for index in found:
            gaps.chunks += len(pages[index].records)
            gaps.length += pages[index].end_offset - pages[index].key
        if len(found) == 1:
            del pages[found.pop()]
        else:
            pages[:] = [page for index, page in enumerate(pages) if index not in found]

    def check(self, last_key: int) -> None:
        """Assert the invariants of this file. O(chunks in memory)."""
        chunks, position, length = 0, self.start_offset, 0
        for page in self.pages:
            assert follow_one_another(page.records, page.key), page.records
            chunks += len(page.records)
            assert page.key >= position, (page.key, position)
            length += page.key - position
            position = page.end_offset
        assert last_key >= position, (last_key, position)
        length += last_key - position
        gaps = self.gaps
        if gaps is None:
            assert self.pages, last_key
            assert (length, chunks) == (0, self.chunks), (length, chunks, self.chunks)
        else:
            assert length == gaps.length, (length, gaps.length)
            assert 0 < gaps.chunks <= length, (gaps.chunks, length)
            assert chunks + gaps.chunks == self.chunks, (chunks, gaps.chunks, self.chunks)


def follow_one_another(records: Sequence[ChunkRecord], start_offset: int) -> bool:
    """Whether the chunks do so from `start_offset` on, none of them empty."""
    for chunk in records:
        if chunk.length <= 0 or chunk.start_offset != start_offset:
            return False
        start_offset = chunk.end_offset
    return True
