"""Pages of chunks against a plain list: whatever is done, both hold the same."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from segmentstore.contracts.chunk_list import NO_CHUNKS, PAGE_CHUNKS_MAX, ChunkList
from segmentstore.contracts.chunks import ChunkRecord
from segmentstore.contracts.metadata import SegmentMetadata
from tests.support.suites import examples

LENGTHS = st.integers(1, 5)


def small_list(page_chunks: int) -> ChunkList:
    class SmallPages(ChunkList):
        __slots__ = ()

    SmallPages.page_chunks = page_chunks
    return SmallPages()


def chunks_from(start: int, lengths: Sequence[int], name: str = "o") -> list[ChunkRecord]:
    found = []
    for length in lengths:
        found.append(ChunkRecord(start, length, name, 0, 7, start))
        start += length
    return found


def encoded(chunks: Sequence[ChunkRecord]) -> bytes:
    return repr(list(chunks)).encode()


class Machine(RuleBasedStateMachine):
    @initialize(page_chunks=st.integers(1, 5), start=st.integers(0, 3))
    def begin(self, page_chunks: int, start: int) -> None:
        self.chunks = small_list(page_chunks)
        self.model: list[ChunkRecord] = []
        self.end = start
        self.names = 0
        self.seen: list[tuple[Sequence[ChunkRecord], list[ChunkRecord]]] = []

    def new_name(self) -> str:
        self.names += 1
        return f"o{self.names}"

    @rule(length=LENGTHS)
    def append(self, length: int) -> None:
        (chunk,) = chunks_from(self.end, [length], self.new_name())
        self.chunks.append(chunk)
        self.model.append(chunk)
        self.end = chunk.end_offset

    @rule(lengths=st.lists(LENGTHS, max_size=12))
    def extend(self, lengths: list[int]) -> None:
        more = chunks_from(self.end, lengths, self.new_name())
        self.chunks.extend(more)
        self.model += more
        self.end += sum(lengths)

    @rule(data=st.data())
    def extend_pages(self, data: st.DataObject) -> None:
        pages = []
        for _ in range(data.draw(st.integers(0, 3))):
            lengths = data.draw(st.lists(LENGTHS, min_size=1, max_size=self.chunks.page_chunks))
            page = chunks_from(self.end, lengths, self.new_name())
            self.model += page
            self.end += sum(lengths)
            pages.append((page, encoded(page)))
        self.chunks.extend_pages(pages)

    @rule(data=st.data())
    def remove_below(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, self.end + 2))
        gone = [chunk for chunk in self.model if chunk.end_offset <= offset]
        assert self.chunks.remove_below(offset) == gone
        del self.model[: len(gone)]

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def replace(self, data: st.DataObject) -> None:
        first = data.draw(st.integers(0, len(self.model) - 1))
        end = data.draw(st.integers(first + 1, len(self.model)))
        old = self.model[first:end]
        size = old[-1].end_offset - old[0].start_offset
        cuts = sorted(data.draw(st.sets(st.integers(1, size))) - {size})
        borders = [0, *cuts, size]
        lengths = [b - a for a, b in itertools.pairwise(borders)]
        new = chunks_from(old[0].start_offset, lengths, self.new_name())
        assert self.chunks.holds(old)
        assert self.chunks.replace(old, new)
        self.model[first:end] = new

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def replace_what_is_not_there(self, data: st.DataObject) -> None:
        first = data.draw(st.integers(0, len(self.model) - 1))
        end = data.draw(st.integers(first + 1, len(self.model)))
        old = self.model[first:end]
        changed = data.draw(st.integers(0, len(old) - 1))
        old[changed] = old[changed]._replace(block_offset=5)
        if data.draw(st.booleans()):
            old.append(ChunkRecord(old[-1].end_offset, 1, "beyond", 0, 7, 0))
        new = chunks_from(old[0].start_offset, [old[-1].end_offset - old[0].start_offset])
        assert not self.chunks.holds(old)
        assert not self.chunks.replace(old, new)

    @rule()
    def encode(self) -> None:
        def encode(chunks: Sequence[ChunkRecord]) -> bytes:
            self.seen.append((chunks, list(chunks)))
            return encoded(chunks)

        pages = self.chunks.encoded_pages(encode)
        assert [chunk for page in pages for chunk in eval(page)] == self.model
        assert len(pages) == len(self.chunks.page_keys)

    @invariant()
    def holds_what_the_plain_list_holds(self) -> None:
        if not hasattr(self, "chunks"):
            return
        chunks, model = self.chunks, self.model
        chunks.check()
        assert list(chunks) == model
        assert len(chunks) == len(model)
        assert bool(chunks) == bool(model)
        for offset in range(-1, self.end + 2):
            expected = [c for c in model if c.start_offset <= offset < c.end_offset]
            assert chunks.find(offset) == (expected[0] if expected else None)
        if model:
            assert (chunks.first, chunks.last) == (model[0], model[-1])

    @rule(data=st.data())
    def between(self, data: st.DataObject) -> None:
        start = data.draw(st.integers(0, self.end))
        end = data.draw(st.integers(0, self.end + 2))
        assert list(self.chunks.between(start, end)) == [
            chunk for chunk in self.model if chunk.end_offset > start and chunk.start_offset < end
        ]

    @invariant()
    def what_was_handed_out_does_not_change(self) -> None:
        for records, then in getattr(self, "seen", ()):
            assert records[: len(then)] == then


TestMachine = Machine.TestCase
TestMachine.settings = settings(deadline=None, max_examples=examples(150), stateful_step_count=30)


def test_a_page_keeps_its_key_while_chunks_in_it_are_replaced() -> None:
    chunks = small_list(4)
    chunks.extend(chunks_from(0, [10] * 12))
    assert chunks.page_keys == [0, 40, 80]
    for start, length in ((40, 20), (40, 40)):
        old = list(chunks.between(start, start + length))
        assert chunks.replace(old, chunks_from(start, [length], f"by {length}"))
        assert chunks.page_keys == [0, 40, 80]
    assert chunks.replace([chunks.first], chunks_from(0, [5, 5]))
    assert chunks.page_keys == [0, 10, 40, 80], "one that overflows is split"


def test_neighbours_that_fit_half_a_page_are_joined() -> None:
    chunks = small_list(4)
    chunks.extend(chunks_from(0, [10] * 16))
    for start in (40, 80):
        old = list(chunks.between(start, start + 40))
        assert chunks.replace(old, chunks_from(start, [40]))
    assert chunks.page_keys == [0, 40, 120]
    assert chunks.replace(list(chunks.between(0, 40)), chunks_from(0, [40]))
    assert chunks.page_keys == [0, 40, 120], "three do not fit half of one"


def test_a_replacement_over_a_border_leaves_pages_whose_keys_are_their_first_chunks() -> None:
    chunks = small_list(4)
    chunks.extend(chunks_from(0, [10] * 12))
    assert chunks.replace(list(chunks.between(30, 60)), chunks_from(30, [30]))
    assert chunks.page_keys == [0, 30, 80]
    chunks.check()
    (found,) = chunks.between(50, 51)
    assert chunks.find(50) == found == ChunkRecord(30, 30, "o", 0, 7, 30)


def test_a_replacement_that_does_not_cover_the_same_bytes_is_a_mistake() -> None:
    chunks = small_list(4)
    chunks.extend(chunks_from(0, [10] * 6))
    old = list(chunks)[1:3]
    for new in (
        chunks_from(10, [19]),
        chunks_from(10, [21]),
        chunks_from(11, [19]),
        [*chunks_from(10, [5]), *chunks_from(16, [14])],
        chunks_from(10, [20, 0]),
    ):
        with pytest.raises(AssertionError):
            chunks.replace(old, new)
    assert list(chunks) == chunks_from(0, [10] * 6)


@given(st.integers(1, 5), st.lists(LENGTHS, min_size=1, max_size=30), st.data())
@settings(deadline=None)
def test_only_pages_that_changed_are_encoded_again(
    page_chunks: int, lengths: list[int], data: st.DataObject
) -> None:
    chunks = small_list(page_chunks)
    chunks.extend(chunks_from(0, lengths))
    encodes: list[list[ChunkRecord]] = []

    def encode(page: Sequence[ChunkRecord]) -> bytes:
        encodes.append(list(page))
        return encoded(page)

    chunks.encoded_pages(encode)
    if not chunks.paged:
        return
    encodes.clear()
    chunks.encoded_pages(encode)
    assert not encodes
    chunks.append(chunks_from(sum(lengths), [3])[0])
    chunks.encoded_pages(encode)
    assert [page[-1] for page in encodes] == [chunks.last]
    encodes.clear()
    chosen = data.draw(st.sampled_from(list(chunks)))
    keys = chunks.page_keys
    chunks.replace([chosen], [chosen._replace(object_name="other")])
    chunks.encoded_pages(encode)
    assert chunks.page_keys == keys or len(chunks.page_keys) < len(keys)
    assert len(encodes) == 1
    encodes.clear()
    chunks.remove_below(chunks.first.end_offset)
    chunks.encoded_pages(encode)
    assert len(encodes) <= 1, "the first page alone was cut"


def size_of(*parts: Any) -> int:
    return sum(map(sys.getsizeof, parts))


def test_a_short_list_takes_little_more_than_a_plain_one() -> None:
    none, one = ChunkList(), ChunkList(chunks_from(0, [10]))
    plain: list[ChunkRecord] = []
    assert size_of(none) <= size_of(plain)
    plain.append(one.first)
    assert size_of(one, one._last) <= size_of(plain) + 48
    assert not one.paged


def test_a_page_of_the_store_has_128_chunks() -> None:
    chunks = ChunkList(chunks_from(0, [1] * 300))
    assert chunks.page_keys == [0, PAGE_CHUNKS_MAX, 2 * PAGE_CHUNKS_MAX] == [0, 128, 256]


def test_lists_with_the_same_chunks_are_equal_in_whatever_pages() -> None:
    one, other = small_list(2), small_list(5)
    for each in (one, other):
        each.extend(chunks_from(0, [10] * 7))
    assert one == other
    other.replace([other.last], [other.last._replace(object_name="other")])
    assert one != other
    one.append(chunks_from(70, [10])[0])
    assert one != other


def test_segments_without_chunks_share_a_list_that_does_not_grow() -> None:
    one, two = SegmentMetadata(1, "a", 0), SegmentMetadata(2, "b", 0)
    assert one.chunks is two.chunks is NO_CHUNKS
    chunks = chunks_from(0, [10, 20])
    one.own_chunks().extend(chunks)
    one.own_chunks().append(chunks_from(30, [5])[0])
    assert [chunk.length for chunk in one.chunks] == [10, 20, 5]
    with pytest.raises(AssertionError, match="does not grow"):
        two.chunks.append(chunks[0])
    with pytest.raises(AssertionError, match="does not grow"):
        two.chunks.extend_pages([(chunks, None)])
    assert two.chunks.remove_below(10) == []
    assert list(NO_CHUNKS) == []
    assert two.chunks == ChunkList()
