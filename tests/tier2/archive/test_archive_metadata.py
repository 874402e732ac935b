"""The metadata of an archive: what changes are taken, what they do, and their bytes."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from segmentstore.contracts.archive_codec import (
    decode_archive,
    decode_change,
    encode_archive,
    encode_change,
)
from segmentstore.contracts.archive_metadata import (
    LIST_PARTS,
    NO_ARCHIVE,
    NODE_LISTS,
    NODE_PARTS,
    ArchiveChange,
    ArchiveMetadata,
    FirstPartMoved,
    HotCopiesDeleted,
    OffloadBegun,
    OffloadCompleted,
    OffloadConflictError,
    PartsListClosed,
    PartsSwept,
)
from segmentstore.contracts.archived_parts import ArchivedPart, OffloadState
from tests.tier2.archive.sample_parts import (
    LENGTH,
    archive_of,
    attempt_of_index,
    grown,
    hot_deleted,
    part_of_index,
    with_part,
)

numbers = st.integers(0, 2**63 - 1)
uids = st.binary(min_size=16, max_size=16)


class ArchiveMachine(RuleBasedStateMachine):
    """Against the plain list of all parts there ever were."""

    def __init__(self) -> None:
        super().__init__()
        self.archive = NO_ARCHIVE
        self.parts: list[ArchivedPart] = []
        self.attempt: ArchivedPart | None = None
        self.hot = self.first = self.swept = self.lists = self.number = 0

    def refused(self, change: ArchiveChange) -> None:
        before = self.archive
        with pytest.raises(OffloadConflictError):
            before.after(change)
        assert self.archive == before

    @rule(gap=st.integers(1, 3), uid=uids, length=st.integers(1, 99), ops=st.integers(0, 3))
    def begin(self, gap: int, uid: bytes, length: int, ops: int) -> None:
        number = self.number + gap
        if self.attempt is not None and gap == 1:
            number = self.attempt.number
        last = (self.parts[-1].last_sequence if self.parts else 0) + ops
        part = replace(
            attempt_of_index(0), number=number, ledger_id=number, uid=uid, length=length,
            first_sequence=last, last_sequence=last, last_ms=last,
        )  # fmt: skip
        if len(self.parts) - self.lists * LIST_PARTS >= LIST_PARTS:
            self.refused(OffloadBegun(part))
            return
        self.refused(OffloadBegun(replace(part, number=self.number)))
        self.refused(OffloadBegun(replace(part, state=OffloadState.COMPLETE)))
        if self.attempt is not None and number < self.attempt.number:
            self.refused(OffloadBegun(part))
            return
        self.archive = self.archive.after(OffloadBegun(part))
        self.attempt = part

    @precondition(lambda self: self.attempt is not None)
    @rule(now=st.integers(1, 100))
    def complete(self, now: int) -> None:
        part = self.attempt
        assert part is not None
        self.refused(OffloadCompleted(part.number, bytes(15) + b"x", now))
        self.refused(OffloadCompleted(part.number + 1, part.uid, now))
        self.archive = self.archive.after(OffloadCompleted(part.number, part.uid, now))
        highest = max((part.last_ms, *(each.last_ms for each in self.parts)))
        done = replace(part, state=OffloadState.COMPLETE, offloaded_ms=now, last_ms=highest)
        self.parts.append(done)
        self.number, self.attempt = part.number, None
        self.refused(OffloadCompleted(part.number, part.uid, now))

    @rule(data=st.data())
    def delete_hot(self, data: st.DataObject) -> None:
        if self.hot < len(self.parts):
            end = data.draw(st.integers(self.hot + 1, len(self.parts)))
            change = HotCopiesDeleted(self.parts[end - 1].number, end)
            self.archive = self.archive.after(change)
            self.hot = end
            self.refused(change)
        else:
            self.refused(HotCopiesDeleted(self.number + 1, self.hot + 1))

    @rule()
    def fill_and_close(self) -> None:
        """Parts up to the end of a list, which is closed then: too many for single steps."""
        self.refused(PartsListClosed(self.lists + 1))
        if self.attempt is not None:
            self.complete(1)
        while len(self.parts) < (self.lists + 1) * LIST_PARTS:
            self.refused(PartsListClosed(self.lists))
            part = replace(
                part_of_index(0), number=self.number + 1, ledger_id=7, length=5,
                first_sequence=self.archive.last_sequence + 1,
                last_sequence=self.archive.last_sequence + 2, last_ms=self.archive.last_ms + 1,
            )  # fmt: skip
            self.archive = with_part(self.archive, part)
            self.parts.append(part)
            self.number += 1
        self.archive = self.archive.after(PartsListClosed(self.lists))
        self.lists += 1

    @rule(data=st.data())
    def expire(self, data: st.DataObject) -> None:
        if self.first < self.hot:
            end = data.draw(st.integers(self.first + 1, self.hot))
            before = sum(part.length for part in self.parts[:end])
            self.archive = self.archive.after(FirstPartMoved(end, before))
            self.first = end
        self.refused(FirstPartMoved(self.first, 0))
        self.refused(PartsSwept(self.first + 1))

    @precondition(lambda self: self.swept < self.first)
    @rule(data=st.data())
    def sweep(self, data: st.DataObject) -> None:
        end = data.draw(st.integers(self.swept + 1, self.first))
        self.archive = self.archive.after(PartsSwept(end))
        self.swept = end

    @invariant()
    def is_as_the_model(self) -> None:
        archive = self.archive
        tail = self.parts[self.lists * LIST_PARTS :]
        assert archive.count == len(self.parts)
        assert [part.number for part in archive.tail] == [part.number for part in tail]
        for index, part in enumerate(archive.tail, self.lists * LIST_PARTS):
            is_deleted = index < self.hot
            assert (part.state is OffloadState.HOT_DELETED) == is_deleted
            expected = self.parts[index]
            state = OffloadState.HOT_DELETED if is_deleted else OffloadState.COMPLETE
            assert part == replace(expected, state=state)
        assert archive.attempt == self.attempt
        assert archive.kept == len(self.parts) - self.first
        assert archive.kept_bytes == sum(part.length for part in self.parts[self.first :])
        for ordinal, bound in enumerate(archive.list_bounds, archive.nodes * NODE_LISTS):
            last = self.parts[(ordinal + 1) * LIST_PARTS - 1]
            through = sum(part.length for part in self.parts[: (ordinal + 1) * LIST_PARTS])
            assert bound == (last.last_sequence, last.last_ms, through)
        assert decode_archive(encode_archive(archive)) == archive


ArchiveMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
TestArchive = ArchiveMachine.TestCase


def test_lists_become_nodes_and_leave_when_all_their_parts_are_swept() -> None:
    assert grown(LIST_PARTS * 3 + 7) == archive_of(LIST_PARTS * 3 + 7)
    archive = archive_of(NODE_PARTS * 2 + LIST_PARTS + 1)
    assert (archive.nodes, len(archive.node_bounds), len(archive.list_bounds)) == (2, 2, 1)
    archive = hot_deleted(archive, archive.count - 1)
    first = archive.after(FirstPartMoved(NODE_PARTS + 5, (NODE_PARTS + 5) * LENGTH))
    assert len(first.node_bounds) == 2, "its objects are still to be deleted"
    assert len(first.after(PartsSwept(NODE_PARTS - 1)).node_bounds) == 2
    swept = first.after(PartsSwept(NODE_PARTS))
    assert swept.node_bounds == archive.node_bounds[1:]
    assert decode_archive(encode_archive(swept)) == swept


changes = st.one_of(
    st.builds(OffloadBegun, st.builds(attempt_of_index, st.integers(0, 2**40))),
    st.builds(OffloadCompleted, numbers, uids, numbers, numbers),
    st.builds(HotCopiesDeleted, numbers, numbers),
    st.builds(PartsListClosed, numbers),
    st.builds(FirstPartMoved, numbers, numbers),
    st.builds(PartsSwept, numbers),
)


@given(changes, st.data())
def test_a_change_comes_back_as_it_was_and_is_refused_when_cut(
    change: ArchiveChange, data: st.DataObject
) -> None:
    encoded = encode_change(change)
    decoded = decode_change(encoded)
    assert (type(decoded), decoded) == (type(change), change)
    with pytest.raises(struct.error):
        decode_change(encoded[: data.draw(st.integers(0, len(encoded) - 1))])


def test_an_unknown_change_and_bytes_behind_an_archive_are_refused() -> None:
    with pytest.raises(struct.error, match="unknown change of the archive, 9"):
        decode_change(b"\x09" + bytes(40))
    encoded = encode_archive(archive_of(3))
    for length in range(1, len(encoded)):
        with pytest.raises(struct.error):
            decode_archive(encoded[:length])
    with pytest.raises(struct.error, match="behind the archive"):
        decode_archive(encoded + b"\0")
    assert encode_archive(ArchiveMetadata()) == b""
