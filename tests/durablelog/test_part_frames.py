"""Frames from parts: verified, each once, without a hole, whatever the parts repeat."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durablelog.data_frame import seal_header
from durablelog.durable_data_log import LogAddress, LogFrame
from durablelog.generated_ledgers import first_address, generated_metadata
from durablelog.part_frames import PartFrames
from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.ledgers import LedgerEntry, LedgerMetadata, ReadHandle

CONTAINER = 7


def entry(
    sequence: int, epoch: int = 1, data: bytes | None = None, container: int = CONTAINER
) -> bytes:
    payload = f"frame {sequence}".encode() if data is None else data
    return seal_header(container, epoch, sequence, max(0, sequence - 1), [payload]) + payload


class Entries(ReadHandle):
    """A part that is a list."""

    def __init__(
        self, entries: Sequence[bytes], number: int = 1, address: LogAddress | None = None
    ) -> None:
        self._entries = entries
        self._number = number
        length = sum(map(len, entries))
        if address is None:
            self._metadata = LedgerMetadata(
                ensemble_size=3,
                write_quorum=3,
                ack_quorum=2,
                length=length,
                last_entry=len(entries) - 1,
            )
        else:
            self._metadata = generated_metadata(
                container_id=CONTAINER,
                number=number,
                epoch=1,
                first_frame=1,
                entries=len(entries),
                length=length,
                address=address,
            )

    @property
    def ledger_id(self) -> int:
        return 40 + self._number

    @property
    def metadata(self) -> LedgerMetadata:
        return self._metadata

    async def read(self, first: int, last: int) -> AsyncGenerator[Sequence[LedgerEntry], None]:
        self.check_entries(first, last)
        for number in range(first, last + 1, 3):
            yield [
                LedgerEntry(each, memoryview(self._entries[each]))
                for each in range(number, min(number + 3, last + 1))
            ]

    async def close(self) -> None:
        """Nothing is held."""


def frames_of(parts: Sequence[Sequence[bytes]]) -> list[LogFrame]:
    async def main() -> list[LogFrame]:
        frames = PartFrames(CONTAINER)
        return [
            frame
            for number, entries in enumerate(parts, 1)
            async for batch in frames.read(Entries(entries, number), number)
            for frame in batch
        ]

    return asyncio.run(main())


def sequences(frames: Sequence[LogFrame]) -> list[int]:
    return [frame.sequence for frame in frames]


@given(st.data())
def test_repeats_in_a_part_and_across_parts_are_dropped(data: st.DataObject) -> None:
    """Each frame may come again as long as it was among the last ones."""
    written: list[bytes] = []
    last = 0
    for _ in range(data.draw(st.integers(1, 40))):
        again = data.draw(st.integers(max(1, last - 5), last + 1))
        last = max(last, again)
        written.append(entry(again))
    first = written.index(entry(1))
    written = written[first:]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(written)), max_size=4)))
    parts = [
        written[start:end] for start, end in zip([0, *cuts], [*cuts, len(written)], strict=True)
    ]
    found = frames_of(parts)
    assert sequences(found) == list(range(1, last + 1))
    assert [bytes(frame.payload) for frame in found] == [
        f"frame {sequence}".encode() for sequence in range(1, last + 1)
    ]
    assert [frame.address for frame in found] == sorted({frame.address for frame in found})


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (entry(3), "frame 3 lies where frame 2 is due"),
        (entry(1, data=b"other"), "frame 1 was there already, with other content"),
        (entry(1, epoch=2), "frame 1 was there already, with other content"),
        (entry(0), "frame 0 lies where frame 2 is due"),
        (entry(2, container=8), "a frame of container 8 lies there"),
        (entry(2)[:-1], "the payload is cut off"),
        (entry(2)[:-1] + b"!", "payload checksum mismatch"),
        (b"!" + entry(2)[1:], "no frame begins here"),
        (b"", "no frame is there"),
    ],
)
def test_what_is_not_the_next_frame_is_corruption_and_is_named(second: bytes, reason: str) -> None:
    for parts in ([[entry(1), second]], [[entry(1)], [second]]):
        with pytest.raises(DataCorruptionError, match=reason) as found:
            frames_of(parts)
        assert found.value.where == (
            "ledger 41 entry 1" if len(parts) == 1 else "ledger 42 entry 0"
        )


def test_addresses_count_entries_of_ledgers_and_bytes_of_files() -> None:
    entries = [entry(sequence) for sequence in range(1, 8)]
    base = LogAddress(5 << 32 | 4096)

    async def addresses(handle: Entries, first: int = 0) -> list[int]:
        read = PartFrames(CONTAINER).read(handle, 5, first)
        return [frame.address async for batch in read for frame in batch]

    async def main() -> None:
        assert await addresses(Entries(entries, 5)) == [5 << 32 | number for number in range(7)]
        exact = [base + sum(map(len, entries[:number])) for number in range(7)]
        assert await addresses(Entries(entries, 5, base)) == exact
        # From the middle on they are unknown: lower, and ordered.
        found = await addresses(Entries(entries, 5, base), 3)
        assert found == sorted(found)
        assert all(base < address < right for address, right in zip(found, exact[3:], strict=True))
        assert [frame async for frame in PartFrames(CONTAINER).read(Entries([], 5), 5)] == []

    assert first_address(Entries(entries, 5, base).metadata) == base
    assert first_address(Entries(entries, 5).metadata) is None
    asyncio.run(main())


def test_a_log_is_read_on_behind_its_parts() -> None:
    def frame(sequence: int) -> LogFrame:
        data = memoryview(f"frame {sequence}".encode())
        return LogFrame(LogAddress(sequence), sequence, 1, data)

    async def main() -> None:
        frames = PartFrames(CONTAINER)
        handle = Entries([entry(sequence) for sequence in range(1, 6)])
        assert [each async for batch in frames.read(handle, 1) for each in batch]
        behind = frames.follow([frame(4), frame(5), frame(6), frame(7)])
        assert sequences(behind) == [6, 7]
        with pytest.raises(DataCorruptionError, match="frame 9 lies where frame 8 is due"):
            frames.follow([frame(9)])

    asyncio.run(main())
