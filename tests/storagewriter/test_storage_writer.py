"""When bytes go to Tier 2 and in what objects.

Checklist of the reference, section 3.6: 92, 94, 96, 98, 106, 113, 114.
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from durablelog.operations import StorageUpdateOperation
from recovery.harness.simulation.virtual_loop import run_virtual
from segmentstore.contracts.errors import ConfigError
from storagewriter import flush_loop, object_uploader
from storagewriter.config import StorageWriterConfig
from tests.storagewriter.fake_container import FakeContainer, make_config, run

pytestmark = pytest.mark.usefixtures("active_or_idle")

EPSILON_S = 0.1


class TestTriggers:
    def test_nothing_goes_before_it_is_due(self) -> None:
        async def body(c: FakeContainer) -> None:
            a = c.create("a")
            c.append(a, 99)
            await asyncio.sleep(10 - EPSILON_S)
            assert c.object_count == 0

        run(body)

    def test_size(self) -> None:
        """92."""

        async def body(c: FakeContainer) -> None:
            a = c.create("a")
            for _ in range(10):
                c.append(a, 10)
            await asyncio.sleep(EPSILON_S)
            assert c.segment(a).storage_length == 100
            assert c.object_count == 1
            assert c.writer.unflushed_bytes == 0

        run(body)

    def test_age_counts_from_the_oldest_byte(self) -> None:
        """92."""

        async def body(c: FakeContainer) -> None:
            a = c.create("a")
            c.append(a, 1)
            await asyncio.sleep(9)
            c.append(a, 1)
            await asyncio.sleep(1 + EPSILON_S)
            assert c.segment(a).storage_length == 2
            c.append(a, 1)
            await asyncio.sleep(10 - 2 * EPSILON_S)
            assert c.segment(a).storage_length == 2
            await asyncio.sleep(4 * EPSILON_S)
            assert c.segment(a).storage_length == 3

        run(body)

    def test_empty_appends_go_nowhere(self) -> None:
        """92, 98."""

        async def body(c: FakeContainer) -> None:
            a = c.create("a")
            c.append(a, 0)
            c.seal(a)
            assert c.writer.first_unflushed_sequence() is None
            await c.writer.flush()
            await asyncio.sleep(20)
            assert c.object_count == 0

        run(body)

    def test_seal(self) -> None:
        """94."""

        async def body(c: FakeContainer) -> None:
            a = c.create("a")
            c.append(a, 5)
            c.seal(a)
            await asyncio.sleep(EPSILON_S)
            assert c.segment(a).storage_length == 5

        run(body)

    def test_truncate(self) -> None:
        """96: what is left goes at once; what was cut away does not go at all."""

        async def body(c: FakeContainer) -> None:
            a, b = c.create("a"), c.create("b")
            c.append(a, 50)
            c.truncate(a, 30)
            c.append(b, 50)
            c.truncate(b, 50)
            await asyncio.sleep(EPSILON_S)
            (chunk,) = c.segment(a).chunks
            assert (chunk.start_offset, chunk.length) == (30, 20)
            assert not c.segment(b).chunks
            assert c.writer.unflushed_bytes == 0

        run(body)

    def test_truncate_then_seal(self) -> None:
        """96."""

        async def body(c: FakeContainer) -> None:
            a = c.create("a")
            c.append(a, 50)
            c.truncate(a, 30)
            c.seal(a)
            c.truncate(a, 40)
            await c.writer.flush(a)
            assert c.segment(a).storage_length == 50

        run(body)

    def test_flush_waits_for_all_before_it_and_not_for_more(self) -> None:
        """113."""

        async def body(c: FakeContainer) -> None:
            ids = [c.create(f"s{i}") for i in range(20)]
            for segment_id in ids:
                c.append(segment_id, 10)
            c.read_gate = asyncio.Event()
            flush = asyncio.ensure_future(c.writer.flush())
            await asyncio.sleep(EPSILON_S)
            assert not flush.done()
            c.append(ids[0], 10)
            c.read_gate.set()
            await flush
            assert [c.segment(each).storage_length for each in ids] == [10] * 20
            assert c.segment(ids[0]).length == 20

        run(body)

    def test_flush_of_one_segment_leaves_the_others(self) -> None:
        async def body(c: FakeContainer) -> None:
            a, b = c.create("a"), c.create("b")
            c.append(a, 10)
            c.append(b, 10)
            await c.writer.flush(a)
            assert (c.segment(a).storage_length, c.segment(b).storage_length) == (10, 0)
            await c.writer.flush(a)
            await c.writer.flush(12345)

        run(body)

    def test_a_request_sends_all_and_makes_few_due_in_a_turn(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(flush_loop, "SEGMENTS_OF_A_TURN", 4)

        async def body(c: FakeContainer) -> None:
            ids = [c.create(f"s{number}") for number in range(18)]
            for each in ids:
                c.append(each, 5)
            c.writer.request_flush()
            assert not c.writer.busy_segments()
            # Not by those who ask: they have callers who wait.
            assert len(c.writer._pending.ready) == 0
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert 0 < len(c.writer._pending.ready) < len(ids)
            await asyncio.sleep(EPSILON_S)
            assert [c.segment(each).storage_length for each in ids] == [5] * 18

        run(body)

    def test_too_much_pending_sends_all(self) -> None:
        async def body(c: FakeContainer) -> None:
            for length in range(1, 31):
                c.append(c.create(f"s{length}"), length)
                await asyncio.sleep(0.01)
                assert c.writer.unflushed_bytes < 150
            # 1 + ... + 17 = 153, then 18 + ... + 25 = 172, and 26 + ... + 30 wait.
            assert c.object_count == 2

        run(body, unflushed_target_bytes=150, flush_age_s=1000.0)

    def test_largest_go_first_where_not_all_can_go(self) -> None:
        async def body(c: FakeContainer) -> None:
            ids = [c.create(f"s{i}") for i in range(5)]
            c.read_gate = asyncio.Event()
            for segment_id, length in zip(ids, (10, 50, 20, 40, 30), strict=True):
                c.append(segment_id, length)
            await asyncio.sleep(EPSILON_S)
            c.read_gate.set()
            await asyncio.sleep(EPSILON_S)
            assert len(c.metadata.objects) == 1
            blocks = sorted(
                (chunk.block_offset, chunk.length)
                for each in ids
                for chunk in c.segment(each).chunks
            )
            assert [length for _, length in blocks] == [50, 40, 30]

        run(body, unflushed_target_bytes=150, flush_age_s=1000.0, object_segments_max=3)

    def test_what_goes_for_the_total_fills_objects_and_leaves_the_rest(self) -> None:
        async def body(c: FakeContainer) -> None:
            ids = [c.create(f"s{i}") for i in range(9)]
            for segment_id in ids:
                c.append(segment_id, 60)
            await asyncio.sleep(EPSILON_S)
            # 400 of 540 bytes: the seventh segment in part, the last two not at all.
            assert [c.segment(each).storage_length for each in ids] == [60] * 6 + [40, 0, 0]
            assert len(c.metadata.objects) == 1

        run(body, unflushed_target_bytes=400, flush_age_s=1000.0)


class TestObjects:
    def test_many_segments_in_one_object_are_committed_by_several_operations(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Deleting(FakeContainer):
            """Deletes what the first operation made visible, before the second."""

            async def commit(self, operation: Any) -> None:
                await super().commit(operation)
                if isinstance(operation, StorageUpdateOperation) and len(self.segments) == 10:
                    for segment_id, _ in operation.chunks:
                        self.delete(segment_id)

        async def main() -> None:
            c = Deleting(make_config())
            c.writer.start()
            for number in range(10):
                c.append(c.create(f"s{number}"), 10)
            await c.writer.flush()
            updates = [
                operation for operation in c.log if isinstance(operation, StorageUpdateOperation)
            ]
            assert [len(update.chunks) for update in updates] == [3, 3, 3, 1, 3, 3, 1], (
                "what was refused went again"
            )
            assert (len(c.metadata.objects), len(c.metadata.garbage)) == (1, 1)
            assert not c.writer.in_flight_names
            c.check_stored()
            c.check_covered()
            await c.writer.stop()
            assert not c.failures

        monkeypatch.setattr(object_uploader, "OPERATION_CHUNKS", 3)
        run_virtual(main())

    def test_small_segments_share_one(self) -> None:
        async def body(c: FakeContainer) -> None:
            ids = [c.create(f"s{i}") for i in range(10)]
            for segment_id in ids:
                c.append(segment_id, 10)
                await asyncio.sleep(0.5)
            await asyncio.sleep(6)
            # The oldest is due; the others come along.
            assert c.object_count == 1
            assert c.writer.statistics().blocks_written == 10

        run(body)

    def test_a_shared_object_is_bounded_in_bytes_and_segments(self) -> None:
        async def body(c: FakeContainer) -> None:
            for i in range(10):
                c.append(c.create(f"s{i}"), 90)
            await c.writer.flush()
            assert c.object_count == 3
            for i in range(10):
                c.append(c.create(f"t{i}"), 1)
            await c.writer.flush()
            assert c.object_count == 3 + 2

        run(body, object_segments_max=5)

    def test_a_large_segment_has_its_own_objects(self) -> None:
        """92: contiguous and in order, one upload at a time."""

        async def body(c: FakeContainer) -> None:
            a, b = c.create("a"), c.create("b")
            c.append(b, 10)
            c.append(a, 1050)
            await c.writer.flush()
            assert [chunk.length for chunk in c.segment(a).chunks] == [400, 400, 250]
            assert c.object_count == 4

        run(body)

    def test_uploads_are_bounded_in_number_and_bytes(self) -> None:
        async def body(c: FakeContainer) -> None:
            c.read_gate = asyncio.Event()
            ids = [c.create(f"s{i}") for i in range(10)]
            for segment_id in ids:
                c.append(segment_id, 300)
            await asyncio.sleep(EPSILON_S)
            statistics = c.writer.statistics()
            assert (statistics.uploads_in_flight, statistics.upload_bytes_in_flight) == (2, 600)
            c.read_gate.set()
            await c.writer.flush()
            assert c.object_count == 10

        run(body)

    def test_many_segments_end_up_equal(self) -> None:
        """106."""

        async def body(c: FakeContainer) -> None:
            ids = [c.create(f"s{i}") for i in range(50)]
            for turn in range(20):
                for segment_id in ids[turn % 7 :: 3]:
                    c.append(segment_id, (segment_id * turn) % 37)
                await asyncio.sleep(1)
                c.check_covered()
            await c.writer.flush()
            assert c.writer.unflushed_bytes == 0
            assert c.writer.first_unflushed_sequence() is None
            assert c.advances > 0

        run(body)

    def test_a_large_segment_shares_no_object_even_where_it_fits(self) -> None:
        async def body(c: FakeContainer) -> None:
            small, large = c.create("small"), c.create("large")
            c.append(small, 10)
            c.seal(small)
            c.append(large, 150)
            await c.writer.flush()
            assert c.object_count == 2

        run(body)


class TestWhatComesDuringAnUpload:
    def test_ages_from_its_own_time(self) -> None:
        """92: neither from the time of the bytes in flight, nor from the end of the upload."""

        async def body(c: FakeContainer) -> None:
            a = c.create("a")
            c.append(a, 50)
            c.read_gate = asyncio.Event()
            flush = asyncio.ensure_future(c.writer.flush())
            await asyncio.sleep(4)
            c.append(a, 5)
            late = c.log[-1].sequence_number
            await asyncio.sleep(1)
            c.read_gate.set()
            await flush
            assert c.writer.first_unflushed_sequence() == late
            await asyncio.sleep(9 - EPSILON_S)
            assert c.segment(a).storage_length == 50
            await asyncio.sleep(2 * EPSILON_S)
            assert c.segment(a).storage_length == 55

        run(body)

    def test_ages_from_its_own_time_behind_an_older_segment(self) -> None:
        """92: its place in the order of ages is from before the upload; nothing else fits beside
        the older one.
        """

        async def body(c: FakeContainer) -> None:
            older, a = c.create("older"), c.create("a")
            c.append(older, 99)
            c.append(a, 50)
            await c.writer.flush(a)
            c.append(a, 50)
            c.read_gate = asyncio.Event()
            flush = asyncio.ensure_future(c.writer.flush(a))
            await asyncio.sleep(4)
            c.append(a, 95)
            c.read_gate.set()
            await flush
            await asyncio.sleep(6 + EPSILON_S)
            assert (c.segment(older).storage_length, c.segment(a).storage_length) == (99, 100)
            await asyncio.sleep(4)
            assert c.segment(a).storage_length == 195

        run(body, object_bytes=100)

    def test_is_not_forgotten_when_its_age_passes_before_the_commit(self) -> None:
        """92."""

        async def body(c: FakeContainer) -> None:
            a = c.create("a")
            c.append(a, 50)
            c.read_gate = asyncio.Event()
            flush = asyncio.ensure_future(c.writer.flush())
            await asyncio.sleep(8)
            c.append(a, 5)
            await asyncio.sleep(4)
            c.read_gate.set()
            await flush
            await asyncio.sleep(5)
            assert c.segment(a).storage_length == 50
            await asyncio.sleep(2)
            assert c.segment(a).storage_length == 55

        run(body)

    def test_goes_at_the_commit_if_it_was_sealed_meanwhile(self) -> None:
        """94."""

        async def body(c: FakeContainer) -> None:
            a = c.create("a")
            c.append(a, 50)
            c.read_gate = asyncio.Event()
            flush = asyncio.ensure_future(c.writer.flush())
            await asyncio.sleep(EPSILON_S)
            c.append(a, 5)
            c.seal(a)
            c.read_gate.set()
            await flush
            await asyncio.sleep(EPSILON_S)
            assert c.segment(a).storage_length == 55

        run(body)


class TestFirstUnflushedSequence:
    def test_moves_with_the_slowest(self) -> None:
        """114."""

        async def body(c: FakeContainer) -> None:
            a, b = c.create("a"), c.create("b")
            c.append(a, 10)
            slow = c.log[-1].sequence_number
            c.append(b, 10)
            await c.writer.flush(b)
            assert c.writer.first_unflushed_sequence() == slow
            c.append(b, 10)
            await c.writer.flush(a)
            assert c.writer.first_unflushed_sequence() == c.log[-2].sequence_number

        run(body)

    def test_a_deleted_segment_holds_nothing(self) -> None:
        async def body(c: FakeContainer) -> None:
            a = c.create("a")
            c.append(a, 10)
            c.delete(a)
            assert c.writer.first_unflushed_sequence() is None
            assert c.writer.unflushed_bytes == 0
            await asyncio.sleep(EPSILON_S)
            assert c.advances

        run(body)


@pytest.mark.parametrize(
    "change",
    [
        {"flush_bytes": 0},
        {"uploads_max": 0},
        {"flush_bytes": 2**40},
        {"upload_bytes_max": 1},
        {"flush_age_s": -1.0},
        {"deletion_lag_s": -1.0},
        {"retry_min_s": 0.0},
        {"retry_min_s": 31.0},
    ],
)
def test_settings_that_contradict_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        dataclasses.replace(StorageWriterConfig(), **change)  # type: ignore[arg-type]


class TestAge:
    def test_health_names_bytes_that_wait_too_long_whatever_the_cause(self) -> None:
        """An upload that neither ends nor fails was silent for ever."""

        async def body(c: FakeContainer) -> None:
            a = c.create("a")
            assert c.writer.statistics().unflushed_age_s == 0
            c.append(a, 50)
            c.read_gate = asyncio.Event()
            await asyncio.sleep(39)
            assert c.writer.statistics().unflushed_age_s == pytest.approx(39)
            assert c.writer.health() is None
            await asyncio.sleep(2)
            c.append(a, 5)
            told = c.writer.health()
            assert told is not None
            assert "41 s old" in told
            assert "flush_age_s is 10" in told
            assert "55 bytes of 1 segments wait, 1 uploads under way" in told
            c.read_gate.set()
            await asyncio.sleep(EPSILON_S)
            assert c.writer.health() is None
            assert c.writer.statistics().unflushed_age_s == pytest.approx(EPSILON_S)
            await c.writer.flush()

        run(body)
