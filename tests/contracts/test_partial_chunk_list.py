"""Chunk lists with gaps against a plain list, and a catalog that has every page.

The catalog of these tests is written as the real one: by the changes that the list reports.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from segmentstore.contracts.chunk_list import (
    PAGE_CHUNKS_MAX,
    ChunkList,
    PageContent,
    UnknownChunksError,
)
from segmentstore.contracts.chunks import ChunkRecord
from tests.contracts.test_chunk_list import LENGTHS, chunks_from, encoded, small_list
from tests.support.suites import examples

Stretch = tuple[int, int]


class Machine(RuleBasedStateMachine):
    @initialize(
        page_chunks=st.integers(1, 5),
        start=st.integers(0, 3),
        lengths=st.lists(LENGTHS, max_size=20),
    )
    def begin(self, page_chunks: int, start: int, lengths: list[int]) -> None:
        self.chunks = small_list(page_chunks)
        self.model: list[ChunkRecord] = []
        self.catalog: dict[int, list[ChunkRecord]] = {}
        self.known: set[int] = set()
        """Keys of pages."""
        self.end = start
        self.names = 0
        self.extend(lengths)

    # --- what the model says ----------------------------------------------------------------------

    def new_name(self) -> str:
        self.names += 1
        return f"o{self.names}"

    def unknown(self, start: int, end: int) -> list[Stretch]:
        """Of [start, end), with neighbours joined."""
        found: list[Stretch] = []
        for key in sorted(self.catalog.keys() - self.known):
            low, high = max(start, key), min(end, self.catalog[key][-1].end_offset)
            if low >= high:
                continue
            if found and found[-1][1] == low:
                found[-1] = (found[-1][0], high)
            else:
                found.append((low, high))
        return found

    def call(self, start: int, end: int, function: Callable[..., Any], *args: Any) -> Any:
        """The result, or None and the error: what is needed is [start, end)."""
        needed = self.unknown(start, end)
        if not needed:
            return function(*args)
        with pytest.raises(UnknownChunksError) as caught:
            function(*args)
        assert (caught.value.start_offset, caught.value.end_offset) == needed[0]
        return None

    def take(self, changed: dict[int, PageContent | None]) -> None:
        for key, content in changed.items():
            if content is None:
                del self.catalog[key]
                self.known.remove(key)
            else:
                records, count = content
                self.catalog[key] = records[:count]
                self.known.add(key)

    # --- changes ----------------------------------------------------------------------------------

    @rule(lengths=st.lists(LENGTHS, max_size=12))
    def extend(self, lengths: list[int]) -> None:
        for chunk in chunks_from(self.end, lengths, self.new_name()):
            self.chunks.append(chunk)
            self.model.append(chunk)
            self.take(dict([self.chunks.last_page]))
        self.end += sum(lengths)

    @rule(data=st.data())
    def extend_page(self, data: st.DataObject) -> None:
        lengths = data.draw(st.lists(LENGTHS, min_size=1, max_size=self.chunks.page_chunks))
        page = chunks_from(self.end, lengths, self.new_name())
        self.chunks.extend_pages([(page, encoded(page))])
        self.model += page
        self.take({self.end: (page, len(page))})
        self.end += sum(lengths)

    @rule(data=st.data())
    def remove_below(self, data: st.DataObject) -> None:
        start = self.model[0].start_offset if self.model else 0
        offset = data.draw(st.integers(0, self.end + 2) | st.integers(start, start + 12))
        changed: dict[int, PageContent | None] = {}
        removed = self.call(0, offset, self.chunks.remove_below, offset, changed)
        if removed is not None:
            assert removed == [chunk for chunk in self.model if chunk.end_offset <= offset]
            del self.model[: len(removed)]
        self.take(changed)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def replace(self, data: st.DataObject) -> None:
        first = data.draw(st.integers(0, len(self.model) - 1))
        end = min(len(self.model), first + data.draw(st.integers(1, 8)))
        old = self.model[first:end]
        low, high = old[0].start_offset, old[-1].end_offset
        cuts = sorted(data.draw(st.sets(st.integers(1, high - low))) - {high - low})
        borders = [0, *cuts, high - low]
        lengths = [b - a for a, b in itertools.pairwise(borders)]
        new = chunks_from(low, lengths, self.new_name())
        assert self.call(low, high, self.chunks.holds, old) in (True, None)
        changed: dict[int, PageContent | None] = {}
        wrong = [*old[:-1], old[-1]._replace(block_offset=5)]
        assert not self.call(low, high, self.chunks.replace, wrong, new, changed)
        assert not changed
        if self.call(low, high, self.chunks.replace, old, new, changed):
            self.model[first:end] = new
        self.take(changed)

    # --- what is in memory ------------------------------------------------------------------------

    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        keys = data.draw(st.lists(st.sampled_from(sorted(self.catalog)))) if self.catalog else []
        keys += data.draw(st.lists(st.integers(0, self.end), max_size=2))
        self.chunks.forget(keys)
        self.known -= set(keys) - {max(self.catalog, default=0)}

    @precondition(lambda self: self.known != self.catalog.keys())
    @rule(data=st.data())
    def learn(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.catalog.keys() - self.known)))
        page = self.catalog[key]
        shifted = [chunk._replace(start_offset=chunk.start_offset + 1) for chunk in page]
        for wrong_key, wrong in (
            (key, []),
            (key + 1, page),
            (key, [*page, page[-1]]),
            (key, [page[0]._replace(length=0), *page]),
            (key, [page[0]] * (self.chunks.page_chunks + 1)),
            (key, chunks_from(key, [self.end + 1 - key])),
        ):
            with pytest.raises(ValueError):
                self.chunks.learn(wrong_key, wrong)
        end = page[-1].end_offset
        if end in self.known and end - key > 1:
            with pytest.raises(ValueError, match="gap"):
                self.chunks.learn(key + 1, shifted)
        assert self.chunks.learn(key, list(page))
        self.known.add(key)

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def learn_what_is_known(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.known)))
        length = self.catalog[key][-1].end_offset - key
        assert not self.chunks.learn(key, chunks_from(key, [length], "stale"))
        start = self.model[0].start_offset
        if start:
            assert not self.chunks.learn(0, chunks_from(0, [start], "truncated"))

    @rule()
    def begin_again(self) -> None:
        key = max(self.catalog, default=0)
        last = list(self.catalog.get(key, []))
        start = self.model[0].start_offset if self.model else 0
        self.chunks = type(self.chunks).partial(len(self.model), start, last)
        self.known &= {key}

    # --- invariants -------------------------------------------------------------------------------

    @invariant()
    def has_the_pages_that_are_known(self) -> None:
        if not hasattr(self, "chunks"):
            return
        chunks, model = self.chunks, self.model
        chunks.check()
        assert [chunk for _, page in sorted(self.catalog.items()) for chunk in page] == model
        assert [(key, records[:count]) for key, (records, count) in chunks.known_pages()] == [
            (key, self.catalog[key]) for key in sorted(self.known)
        ]
        assert (len(chunks), bool(chunks)) == (len(model), bool(model))
        assert chunks.whole == (self.known == self.catalog.keys())
        assert chunks.paged == (len(self.catalog) > 1)
        if model:
            start = model[0].start_offset
            assert (chunks.start_offset, chunks.last) == (start, model[-1])
            assert self.call(start, start + 1, lambda: chunks.first) in (model[0], None)
            assert repr(chunks).endswith(">" if chunks.whole else ", partial>")

    @invariant()
    def finds_what_is_known(self) -> None:
        for offset in range(-1, getattr(self, "end", -2) + 2):
            expected = [c for c in self.model if c.start_offset <= offset < c.end_offset]
            found = self.call(offset, offset + 1, self.chunks.find, offset)
            if self.chunks.knows(offset, offset + 1):
                assert found == (expected[0] if expected else None)

    @rule(data=st.data())
    def between(self, data: st.DataObject) -> None:
        start = data.draw(st.integers(-1, self.end))
        end = data.draw(st.integers(start + 1, self.end + 2))
        assert self.chunks.gaps(start, end) == self.unknown(start, end)
        assert self.chunks.knows(start, end) == (not self.unknown(start, end))
        found = self.call(start, end, lambda: list(self.chunks.between(start, end)))
        if found is not None:
            assert found == [
                each for each in self.model if each.end_offset > start and each.start_offset < end
            ]

    @rule()
    def asks_for_all(self) -> None:
        chunks = self.chunks
        everything: tuple[tuple[Callable[[], Any], Any], ...] = (
            (lambda: list(chunks), self.model),
            (lambda: chunks == ChunkList(self.model), True),
            (lambda: ChunkList(self.model) == chunks, True),
            (lambda: chunks.page_keys, sorted(self.catalog)),
            (
                lambda: [(key, page[:count]) for key, (page, count) in chunks.page_contents()],
                sorted(self.catalog.items()),
            ),
            (
                lambda: chunks.encoded_pages(encoded),
                [encoded(page) for _, page in sorted(self.catalog.items())],
            ),
        )
        for function, expected in everything:
            found = self.call(0, self.end, function)
            assert chunks.whole == (found is not None)
            assert found is None or found == expected


TestMachine = Machine.TestCase
TestMachine.settings = settings(deadline=None, max_examples=examples(600), stateful_step_count=30)


def with_gap() -> ChunkList:
    """Pages at 0, 40, 80 and 120; those at 40 and 80 are not in memory."""
    chunks = small_list(4)
    chunks.extend(chunks_from(0, [10] * 16))
    chunks.forget([40, 80])
    return chunks


def test_neighbouring_gaps_are_one() -> None:
    chunks = with_gap()
    assert chunks.gaps(0, 160) == [(40, 120)]
    assert chunks.gaps(55, 90) == [(55, 90)]
    assert chunks.learn(80, chunks_from(80, [10] * 4))
    assert chunks.gaps(0, 160) == [(40, 80)]
    chunks.forget([0, 80, 120])
    assert chunks.gaps(0, 160) == [(0, 120)], "the last page stays"


@pytest.mark.parametrize("first", [0, 120])
def test_a_replacement_joins_no_page_behind_a_gap(first: int) -> None:
    chunks = with_gap()
    for start, end in ((first, first + 40), (120 - first, 160 - first)):
        assert chunks.replace(list(chunks.between(start, end)), chunks_from(start, [end - start]))
    assert [key for key, _ in chunks.known_pages()] == [0, 120]
    assert len(chunks) == 10
    chunks.check()


def test_a_list_is_truncated_up_to_a_gap_and_not_into_it() -> None:
    chunks = with_gap()
    with pytest.raises(UnknownChunksError, match=r"\[40,45\)"):
        chunks.remove_below(45)
    changed: dict[int, PageContent | None] = {}
    assert chunks.remove_below(40, changed) == chunks_from(0, [10] * 4)
    assert changed == {0: None}
    assert (chunks.start_offset, len(chunks)) == (40, 12)
    assert chunks.remove_below(40) == []
    assert chunks.find(39) is None
    with pytest.raises(UnknownChunksError):
        chunks.first  # noqa: B018
    chunks.check()


@pytest.mark.parametrize(
    "page",
    [
        (30, [10, 10]),  # begins in a page that is known
        (110, [10, 10]),  # ends in one
        (30, [100]),  # reaches over the gap
        (40, [80]),  # leaves seven chunks and no byte
        (40, [10] * 3 + [49]),  # leaves four chunks and one byte
        (150, [10, 10]),  # ends behind all
        (160, [10]),
    ],
)
def test_a_page_that_does_not_fit_is_refused(page: tuple[int, list[int]]) -> None:
    chunks = with_gap()
    start, lengths = page
    with pytest.raises(ValueError):
        chunks.learn(start, chunks_from(start, lengths))
    assert chunks.gaps(0, 160) == [(40, 120)]
    assert [key for key, _ in chunks.known_pages()] == [0, 120]
    chunks.check()


def test_a_page_that_became_shorter_is_not_overwritten() -> None:
    chunks = small_list(4)
    chunks.extend(chunks_from(0, [10] * 16))
    assert chunks.replace(list(chunks.between(30, 60)), chunks_from(30, [30], "new"))
    chunks.forget([30])
    assert not chunks.learn(0, chunks_from(0, [10] * 4))
    assert [key for key, _ in chunks.known_pages()] == [0, 80, 120]
    assert chunks.gaps(0, 160) == [(30, 80)]


def test_chunks_that_leave_bytes_without_one_are_refused() -> None:
    chunks = with_gap()
    assert chunks.learn(40, chunks_from(40, [10] * 4))
    with pytest.raises(ValueError, match="0 chunks are left for 4 bytes"):
        chunks.learn(80, chunks_from(80, [9] * 4))


@pytest.mark.parametrize(
    ("count", "start", "last"),
    [
        (1, 0, []),
        (1, 0, [10, 10]),  # more than all
        (2, 90, [10, 10]),  # no chunk for the bytes before
        (3, 100, [10, 10]),  # no byte for the chunk before
        (12, 92, [10, 10]),
        (9, 0, [10] * 5),  # no page
        (9, 0, [10, 0]),
    ],
)
def test_a_partial_list_that_cannot_be_is_refused(count: int, start: int, last: list[int]) -> None:
    with pytest.raises(ValueError):
        type(small_list(4)).partial(count, start, chunks_from(100, last))


def test_a_partial_list_of_one_page_is_whole() -> None:
    last = chunks_from(100, [10, 10])
    chunks = ChunkList.partial(2, 100, list(last))
    assert (chunks.whole, chunks.paged, list(chunks)) == (True, False, last)
    assert ChunkList.partial(0, 0, []) == ChunkList()


def size_of(thing: Any, seen: set[int]) -> int:
    """With everything that hangs on it. O(that)."""
    if id(thing) in seen or isinstance(thing, type):
        return 0
    seen.add(id(thing))
    size = sys.getsizeof(thing)
    parts: Sequence[Any] = thing if isinstance(thing, (list, tuple)) else ()
    slots = [
        getattr(thing, name)
        for each in type(thing).__mro__
        for name in getattr(each, "__slots__", ())
    ]
    return size + sum(size_of(part, seen) for part in (*parts, *slots))


def test_a_million_chunks_take_the_memory_of_the_known_pages() -> None:
    chunks = ChunkList()
    sizes = []
    for count in (1_000, 1_000_000):
        for number in range(len(chunks), count):
            chunks.append(ChunkRecord(number * 10, 10, f"o{number // 1000}", number, 7, number))
            if number and number % PAGE_CHUNKS_MAX == 0:
                chunks.forget([(number - PAGE_CHUNKS_MAX) * 10])
        sizes.append(size_of(chunks, set()))
    assert (len(chunks), len(chunks.known_pages())) == (1_000_000, 1)
    assert chunks.gaps(0, 10**9) == [(0, chunks.last_page[0])]
    assert max(sizes) < 64 * 1024
    chunks.check()
