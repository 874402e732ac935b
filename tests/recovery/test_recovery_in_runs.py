"""A recovery commits what a log says operation by operation, however it is cut into frames and
runs.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Container, Iterator, Sequence

from hypothesis import given
from hypothesis import strategies as st

from durablelog.checkpoint_codec import encode_checkpoint
from durablelog.data_frame_builder import DataFrameBuilder
from durablelog.data_frame_reader import DataFrameReader
from durablelog.durable_data_log import LogAddress, LogFrame
from durablelog.log_positions import LogPositions, PartOperations
from durablelog.memory_data_log import MemoryDataLog, MemoryLogStore
from durablelog.metadata_updater import MetadataUpdater
from durablelog.operation_codec import APPEND_HEAD_LENGTH, encode_operation
from durablelog.operations import (
    AppendOperation,
    CheckpointOperation,
    CreateOperation,
    Operation,
    UpdateAttributesOperation,
)
from recovery.harness.simulation.virtual_loop import run_virtual
from recovery.recovery_processor import recover
from recovery.replay import Replay
from segmentstore.contracts.metadata import ContainerMetadata

PLACED = 12
PART_BYTES = 300
"""Of the log, as its positions have it."""
SEGMENTS = (2, 3)


class FramesLog(MemoryDataLog):
    """These frames, some at a time, and nothing else."""

    def __init__(self, frames: Sequence[LogFrame], batch: int) -> None:
        super().__init__(MemoryLogStore(), 0)
        self._frames = frames
        self._batch = batch

    @property
    def reads_ranges(self) -> bool:
        return True

    async def read(
        self, start: LogAddress | None = None
    ) -> AsyncGenerator[Sequence[LogFrame], None]:
        assert start is None
        for first in range(0, len(self._frames), self._batch):
            yield self._frames[first : first + self._batch]


class Room:
    """Room for so many bytes at a time."""

    placed_bytes_min = PLACED

    def __init__(self, room_bytes: int) -> None:
        self.room_bytes = room_bytes
        self.waits = 0

    async def wait_roomy(self) -> None:
        self.waits += 1


@st.composite
def logged(draw: st.DrawFn) -> list[Operation]:
    """Operations of a log from its checkpoint on, numbered; sizes from none to beyond PLACED."""
    operations: list[Operation] = [
        CheckpointOperation(encode_checkpoint(ContainerMetadata(0))),
        CreateOperation("a"),
        CreateOperation("b"),
    ]
    lengths = dict.fromkeys(SEGMENTS, 0)
    steps = st.tuples(
        st.sampled_from(["append"] * 8 + ["event", "update", "checkpoint"]),
        st.sampled_from(SEGMENTS),
        st.integers(0, 3 * PLACED),
    )
    for number, (step, segment_id, size) in enumerate(draw(st.lists(steps, max_size=40))):
        attributes = {bytes(16): number}
        if step == "update":
            operations.append(UpdateAttributesOperation(segment_id, attributes))
        elif step == "checkpoint":
            operations.append(CheckpointOperation(bytes(size)))
        else:
            with_it = attributes if step == "event" else None
            data = bytes([number]) * size
            operations.append(AppendOperation(segment_id, lengths[segment_id], data, with_it))
            lengths[segment_id] += size
    for number, operation in enumerate(operations, 1):
        operation.sequence_number = number
        operation.timestamp_ms = draw(st.integers(0, 9)) + number // 4
    return operations


def framed(
    operations: Sequence[Operation], payload_max: int, seals: Container[int]
) -> Iterator[LogFrame]:
    """Their records in frames; one is sealed behind these operations."""
    builder, payloads = DataFrameBuilder(payload_max), list[bytes]()
    for number, operation in enumerate(operations):
        parts = encode_operation(operation)
        builder.add(parts, sum(map(len, parts)))
        payloads += [b"".join(full) for full in builder.take_full()]
        if number in seals and (sealed := builder.seal()) is not None:
            payloads.append(b"".join(sealed))
    if (sealed := builder.seal()) is not None:
        payloads.append(b"".join(sealed))
    address = 0
    for sequence, payload in enumerate(payloads):
        begin = LogAddress(address + 7)
        yield LogFrame(LogAddress(address), sequence, 1, memoryview(payload), begin)
        address = begin + len(payload)


def known(positions: LogPositions) -> list[object]:
    content = {**vars(positions), "_part_of": None}
    parts: dict[int, PartOperations] = content.pop("_parts")
    fields = PartOperations.__slots__
    return [content, {n: [getattr(part, each) for each in fields] for n, part in parts.items()}]


def positions_of() -> LogPositions:
    return LogPositions(lambda address: address // PART_BYTES)


def test_a_frame_behind_a_record_that_was_cut_off() -> None:
    """Its owner died, and the next one appends."""
    base: list[Operation] = [
        CheckpointOperation(encode_checkpoint(ContainerMetadata(0)), sequence_number=1),
        CreateOperation("a", sequence_number=2),
    ]
    cut = AppendOperation(2, 0, bytes(100), sequence_number=3)
    append = AppendOperation(2, 0, b"acknowledged", sequence_number=4)
    (first,), (begin, _), (last,) = (framed(each, 100, ()) for each in (base, [cut], [append]))
    frames = [first, begin._replace(sequence=1), last._replace(sequence=2, epoch=2)]
    metadata, committed = ContainerMetadata(0), list[Operation]()
    log = FramesLog(frames, 1)
    run_virtual(
        recover(log, MetadataUpdater(metadata), LogPositions(), committed.extend, Room(1000))
    )
    assert committed == [*base, append]


def test_the_highest_time_of_a_frame_counts() -> None:
    operations: list[Operation] = [
        CheckpointOperation(encode_checkpoint(ContainerMetadata(0)), sequence_number=1),
        CreateOperation("a", sequence_number=2),
    ]
    for number, time_ms in enumerate((5_000, 9_000, 7_000)):
        append = AppendOperation(2, number, b"x", sequence_number=3 + number, timestamp_ms=time_ms)
        operations.append(append)
    positions, log = positions_of(), FramesLog(list(framed(operations, 1000, {1})), 1)
    run_virtual(
        recover(log, MetadataUpdater(ContainerMetadata(0)), positions, lambda _: None, Room(1000))
    )
    of_part = positions.operations_of(0)
    assert of_part is not None
    assert (of_part.last_sequence, of_part.last_ms) == (5, 9_000)


@given(
    logged(),
    st.integers(16, 400),
    st.sets(st.integers(0, 43), max_size=8),
    st.integers(1, 200),
    st.integers(1, 9),
    st.booleans(),
)
def test_runs_say_what_single_operations_say(
    operations: list[Operation],
    payload_max: int,
    seals: set[int],
    room_bytes: int,
    batch: int,
    repeats: bool,
) -> None:
    frames = list(framed(operations, payload_max, seals))
    bytes_of_log = b"".join(b"." * 7 + bytes(frame.payload) for frame in frames)
    expected, expected_positions = ContainerMetadata(0), positions_of()
    single = Replay(MetadataUpdater(expected), expected_positions)
    reader = DataFrameReader()
    for frame in frames:
        for record in reader.feed(frame):
            single.apply(record.data, record.first_frame_address, record.last_frame_address)
    single.finish()

    metadata, positions, room = ContainerMetadata(0), positions_of(), Room(room_bytes)
    runs: list[list[Operation]] = []

    def on_commit(run: Sequence[Operation]) -> None:
        assert metadata.sequence_number == run[-1].sequence_number
        runs.append(list(run))

    if repeats:
        frames += frames[-1:]
    report = run_virtual(
        recover(FramesLog(frames, batch), MetadataUpdater(metadata), positions, on_commit, room)
    ).report
    assert encode_checkpoint(metadata) == encode_checkpoint(expected)
    assert known(positions) == known(expected_positions)
    assert (report.operations, report.bytes) == (single.operations, single.bytes)
    assert report.operations_since_checkpoint == single.operations_since_checkpoint
    assert report.bytes_since_checkpoint == single.bytes_since_checkpoint
    for operation in (each for run in runs for each in run):
        if isinstance(operation, AppendOperation):
            places, operation.places = operation.places, ()
            found = b"".join(bytes_of_log[at : at + length] for at, length in places)
            assert found == (operation.data if len(operation.data) >= PLACED else b"")
    assert [each for run in runs for each in run] == operations
    of_appends = [run for run in runs if isinstance(run[0], AppendOperation)]
    assert room.waits == len(of_appends)
    for run in runs:
        if run in of_appends:
            sizes = [sum(map(len, encode_operation(each))) for each in run]
            assert len(run) == 1 or sum(sizes) <= room_bytes
            assert all(isinstance(each, AppendOperation) for each in run)
        else:
            assert len(run) == 1
    assert room_bytes > APPEND_HEAD_LENGTH or all(len(run) == 1 for run in runs)
