"""Checkpoints whose source is not always ready: by reference to snapshots that take their time."""

from __future__ import annotations

import asyncio
import random

import pytest

from durablelog.checkpoint_codec import decode_checkpoint, encode_checkpoint
from durablelog.checkpoint_source import CheckpointSource
from durablelog.data_frame_reader import DataFrameReader
from durablelog.durable_data_log import LogAddress
from durablelog.log_positions import LogPositions
from durablelog.metadata_updater import MetadataUpdater
from durablelog.operations import AnyCheckpoint, CheckpointOperation, SnapshotCheckpointOperation
from recovery.harness.simulation.virtual_loop import run_virtual
from recovery.replay import Replay
from segmentstore.contracts.errors import (
    AppendOutcomeUnknownError,
    ContainerStoppedError,
    TierUnavailableError,
)
from segmentstore.contracts.metadata import ContainerMetadata
from tests.durablelog.test_operation_processor import Bench


class Snapshots(CheckpointSource):
    """A catalog's: each snapshot takes `seconds` from the commit; those of `lost` are given up.

    The takes whose number is in `inline` have all metadata in themselves.
    """

    def __init__(
        self,
        bench: Bench,
        *,
        seconds: float = 10.0,
        lost: frozenset[int] = frozenset(),
        inline: frozenset[int] = frozenset(),
    ) -> None:
        self._bench = bench
        self._seconds = seconds
        self._lost = lost
        self._inline = inline
        self._frozen = b""
        self._ready = True
        self.takes = 0
        self.durable: dict[int, bytes] = {}
        """The metadata of finished snapshots, by the sequence number of the operation."""
        self.given_up: list[int] = []

    @property
    def ready(self) -> bool:
        return self._ready

    def take(self) -> AnyCheckpoint:
        assert self._ready
        self.takes += 1
        blob = encode_checkpoint(self._bench.metadata)
        if self.takes in self._inline:
            return CheckpointOperation(blob)
        self._ready, self._frozen = False, blob
        return SnapshotCheckpointOperation(1, self.takes.to_bytes(16, "big"))

    def logged(self, operation: SnapshotCheckpointOperation, address: LogAddress) -> None:
        assert operation.unique_id == self.takes.to_bytes(16, "big")
        assert self._bench.metadata.sequence_number == operation.sequence_number
        asyncio.get_running_loop().call_later(self._seconds, self._end, operation, address)

    def _end(self, operation: SnapshotCheckpointOperation, address: LogAddress) -> None:
        if self.takes in self._lost:
            self.given_up.append(operation.sequence_number)
        else:
            self.durable[operation.sequence_number] = self._frozen
            self._bench.positions.add_checkpoint(operation.sequence_number, address)
        self._ready = True
        self._bench.processor.checkpoint_source_ready()


def checkpoints(bench: Bench) -> list[AnyCheckpoint]:
    return [
        operation
        for operation in bench.logged()
        if isinstance(operation, (CheckpointOperation, SnapshotCheckpointOperation))
    ]


def test_work_continues_while_the_source_is_not_ready() -> None:
    async def scenario() -> None:
        bench = Bench(checkpoint_operations=5)
        bench.checkpoints = Snapshots(bench)
        # The first of all was logged just now; its snapshot takes 10 s.
        segment_id = await bench.start()
        for number in range(30):
            # More than makes one due.
            assert await bench.processor.append(segment_id, b"0123") == 4 * number
        wanted = bench.processor.checkpoint()
        # A pump that asked the source again and again would never let the time pass.
        await asyncio.sleep(9)
        assert not wanted.done()
        assert bench.positions.newer_would_free(None)
        assert await bench.processor.append(segment_id, b"0123") == 120
        await asyncio.sleep(2)
        # Taken when the source was ready, with no other work to wake the processor.
        assert [operation.sequence_number for operation in checkpoints(bench)] == [
            1,
            wanted.result(),
        ]
        assert bench.positions.truncation_point(None) is None
        await asyncio.sleep(10)
        point = bench.positions.truncation_point(None)
        assert point is not None
        assert point[0] == wanted.result()

    run_virtual(scenario())


@pytest.mark.parametrize("payload_bytes", [48, 200])
@pytest.mark.parametrize("seed", range(8))
def test_under_any_load_each_position_is_a_beginning_of_the_log(
    seed: int, payload_bytes: int
) -> None:
    source = random.Random(seed)
    lost, inline = (frozenset(source.sample(range(2, 40), 12)) for _ in range(2))

    async def scenario() -> None:
        bench = Bench(frame=payload_bytes, checkpoint_operations=15)
        snapshots = Snapshots(bench, seconds=source.uniform(0, 0.2), lost=lost, inline=inline)
        bench.checkpoints = snapshots
        segment_id = await bench.start()
        appends: list[tuple[bytes, asyncio.Future[int | None]]] = []
        wanted = []
        for _ in range(300):
            data = source.randbytes(source.randint(1, 60))
            appends.append((data, bench.processor.append(segment_id, data)))
            if source.random() < 0.04:
                wanted.append(bench.processor.checkpoint())
            if source.random() < 0.4:
                await asyncio.sleep(source.uniform(0, 0.05))
        await asyncio.sleep(5)
        await bench.processor.close()
        offset = 0
        for data, appended in appends:
            assert appended.result() == offset
            offset += len(data)
        assert bench.logged() == bench.committed
        logged = checkpoints(bench)
        assert {future.result() for future in wanted} <= {each.sequence_number for each in logged}
        assert bench.processor.statistics().checkpoints == snapshots.takes == len(logged) > 5
        assert snapshots.given_up
        check_beginnings(bench, snapshots)

    run_virtual(scenario())


def check_beginnings(bench: Bench, snapshots: Snapshots) -> None:
    """From each position, and from nowhere else, the log adds up to the metadata."""
    beginnings = dict(bench.positions._checkpoints)
    inline = {
        each.sequence_number for each in checkpoints(bench) if isinstance(each, CheckpointOperation)
    }
    assert set(beginnings) == inline | set(snapshots.durable)
    for sequence_number, address in beginnings.items():
        metadata = ContainerMetadata(0)
        replay = Replay(
            MetadataUpdater(metadata),
            LogPositions(),
            lambda operation: decode_checkpoint(snapshots.durable[operation.sequence_number]),
        )
        reader = DataFrameReader()
        first = 0
        for frame in bench.store.frames(0):
            if frame.address >= address:
                for record, begin, end, *_ in reader.feed(frame):
                    operation = replay.apply(record, begin, end)
                    first = first or operation.sequence_number
        assert first == sequence_number
        assert encode_checkpoint(metadata) == encode_checkpoint(bench.metadata)


def test_a_close_does_not_wait_for_a_source_that_is_not_ready() -> None:
    async def scenario() -> None:
        bench = Bench()
        bench.checkpoints = Snapshots(bench, seconds=1000.0)
        segment_id = await bench.start()
        wanted = bench.processor.checkpoint()
        last = bench.processor.append(segment_id, b"last")
        started = asyncio.get_running_loop().time()
        await bench.processor.close()
        assert last.result() == 0
        assert asyncio.get_running_loop().time() - started < 1
        late = bench.processor.checkpoint()
        await asyncio.sleep(0)
        for refused in (wanted, late):
            with pytest.raises(ContainerStoppedError):
                refused.result()
        assert len(checkpoints(bench)) == 1
        # What becomes ready after the close has nothing to do any more.
        await asyncio.sleep(2000)
        assert len(checkpoints(bench)) == 1

    run_virtual(scenario())


def test_a_failure_refuses_a_checkpoint_that_waits_for_its_source() -> None:
    async def scenario() -> None:
        bench = Bench()
        bench.checkpoints = Snapshots(bench)
        segment_id = await bench.start()
        wanted = bench.processor.checkpoint()
        await asyncio.sleep(1)
        bench.store.fail_append_after(0, keep=False)
        with pytest.raises(AppendOutcomeUnknownError):
            await bench.processor.append(segment_id, b"x")
        with pytest.raises(ContainerStoppedError):
            wanted.result()
        await asyncio.sleep(20)
        assert [type(failure) for failure in bench.failures] == [TierUnavailableError]
        assert len(checkpoints(bench)) == 1

    run_virtual(scenario())


def test_a_source_that_fails_stops_the_container_and_leaves_no_caller_waiting() -> None:
    class Broken(Snapshots):
        def take(self) -> AnyCheckpoint:
            if self.takes:
                raise RuntimeError("a bug in the source")
            return super().take()

    async def scenario() -> None:
        bench = Bench()
        bench.checkpoints = Broken(bench)
        await bench.start()
        await asyncio.sleep(11)
        with pytest.raises(ContainerStoppedError, match="a bug in the source"):
            await bench.processor.checkpoint()
        assert [str(failure) for failure in bench.failures] == ["a bug in the source"]

    run_virtual(scenario())
