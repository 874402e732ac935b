"""The row of frames in flight, with a writer of this test under it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from durablelog.bookkeeper.frame_pipeline import FramePipeline, WrittenLedger
from durablelog.bookkeeper.ledger_addresses import make_address
from durablelog.bookkeeper.ledger_store import EMPTY, OK, AddResult, LedgerWriter, Replication
from durablelog.bookkeeper.log_metadata import LedgerItem
from durablelog.data_frame import parse_header
from durablelog.durable_data_log import LogAddress
from segmentstore.contracts.checksum import Buffer

TIMEOUT = -23


class Writer(LedgerWriter):
    """Keeps what it is given."""

    def __init__(self, ledger_id: int) -> None:
        self.on_results: Callable[[Sequence[AddResult]], None] = lambda _: None
        self.on_short: Callable[[str], None] = lambda _: None
        self.sent: list[bytes] = []
        self._ledger_id = ledger_id

    @property
    def ledger_id(self) -> int:
        return self._ledger_id

    def append(self, parts: Sequence[Buffer]) -> None:
        self.sent.append(b"".join(parts))

    async def close(self) -> None:
        return


class Row:
    """A pipeline that was begun. `is_valid` is what it gets when it asks."""

    def __init__(self) -> None:
        self.is_valid = True
        self.pipeline = FramePipeline(
            7,
            1 << 20,
            is_valid=lambda: self.is_valid,
            finished=lambda: None,
            nearly_full=lambda: None,
            settled=lambda: None,
        )
        self.writer = self.attach(1, self.begin)

    def begin(self, ledger: WrittenLedger) -> None:
        self.pipeline.begin(3, 0, ledger)

    def attach(self, number: int, how: Callable[[WrittenLedger], None]) -> Writer:
        writer = Writer(100 + number)
        how(
            WrittenLedger(
                LedgerItem(
                    sequence=number, ledger_id=writer.ledger_id, epoch=3, replication=Replication()
                ),
                writer,
            )
        )
        return writer

    def append(self, data: bytes) -> asyncio.Future[LogAddress]:
        future: asyncio.Future[LogAddress] = asyncio.get_running_loop().create_future()
        self.pipeline.append(future, [data], len(data))
        return future


def run(scenario: Callable[[Row], None]) -> None:
    async def main() -> None:
        scenario(Row())

    asyncio.run(main())


def addresses(futures: Sequence[asyncio.Future[LogAddress]]) -> list[LogAddress | None]:
    return [future.result() if future.done() else None for future in futures]


def test_one_result_acknowledges_all_frames_it_speaks_of_each_at_its_place() -> None:
    def scenario(row: Row) -> None:
        futures = [row.append(b"x" * (number + 1)) for number in range(5)]
        row.writer.on_results([AddResult(OK, 0, 3)])
        assert addresses(futures) == [*(make_address(1, number) for number in range(3)), None, None]
        assert (row.pipeline.durable_through, row.pipeline.bytes_in_flight) == (3, 4 + 5)
        row.writer.on_results([AddResult(OK, 3), AddResult(OK, 4)])
        assert addresses(futures)[3:] == [make_address(1, 3), make_address(1, 4)]
        assert list(row.pipeline.ledger.ends) == [49, 99, 150, 202, 255]
        assert (
            row.pipeline.bytes_in_flight,
            row.pipeline.frames_appended,
            row.pipeline.bytes_appended,
        ) == (0, 5, 15)

    run(scenario)


def test_what_a_settled_ledger_has_beyond_what_was_confirmed_is_not_acknowledged_again() -> None:
    def scenario(row: Row) -> None:
        futures = [row.append(b"frame") for _ in range(10)]
        row.writer.on_results([AddResult(OK, 0, 4), AddResult(TIMEOUT, EMPTY, 6)])
        row.pipeline.settle(6)
        row.pipeline.acknowledge_held()
        assert addresses(futures) == [
            *(make_address(1, number) for number in range(7)),
            None,
            None,
            None,
        ]
        assert row.pipeline.frames_appended == 7
        second = row.attach(2, row.pipeline.attach)
        assert second.sent == row.writer.sent[7:]
        second.on_results([AddResult(OK, 0, 3)])
        assert addresses(futures)[7:] == [make_address(2, number) for number in range(3)]

    run(scenario)


def test_frames_are_held_until_the_record_is_surely_ours() -> None:
    def scenario(row: Row) -> None:
        futures = [row.append(b"frame") for _ in range(3)]
        row.is_valid = False
        row.writer.on_results([AddResult(OK, 0, 2)])
        assert addresses(futures) == [None] * 3
        row.pipeline.acknowledge_held()
        row.pipeline.acknowledge_held()
        assert addresses(futures) == [make_address(1, 0), make_address(1, 1), None]

    run(scenario)


def test_a_frame_that_cannot_be_sealed_leaves_no_hole() -> None:
    def scenario(row: Row) -> None:
        first = row.append(b"first")
        with pytest.raises(BufferError):
            row.pipeline.append(
                asyncio.get_running_loop().create_future(), [memoryview(b"abcdef")[::2]], 3
            )
        second = row.append(b"second")
        headers = [parse_header(memoryview(entry), 0) for entry in row.writer.sent]
        assert [header.sequence for header in headers if header is not None] == [1, 2]
        row.writer.on_results([AddResult(OK, 0, 2)])
        assert addresses([first, second]) == [make_address(1, 0), make_address(1, 1)]
        assert row.pipeline.bytes_in_flight == 0

    run(scenario)
