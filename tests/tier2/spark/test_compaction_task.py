"""What a task makes of a group: the same bytes elsewhere, or nothing, whatever the sources and the
storage are like.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recovery.harness.services.s3_servers import credentials
from recovery.harness.simulation.virtual_loop import inline_executor, run_virtual
from segmentstore.contracts.byte_sizes import MIB
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.runtime import Runtime
from tests.support.loop_clock import LoopClock
from tests.support.suites import examples, slow
from tests.tier2.s3_transport import S3World, run_case_with_threads
from tests.tier2.spark.compaction_bed import EXTENT, JOB, Bed, options, settle
from tier2.block_object import CODEC_NONE, CODEC_ZSTD, encode_block, parse_block_header
from tier2.copy_plan import Run
from tier2.file_object_storage import FileObjectStorage
from tier2.mailbox.messages import REPLACEMENT_CHUNKS_MAX
from tier2.memory_object_storage import MemoryObject, MemoryObjectStorage
from tier2.object_names import parse_object_name
from tier2.object_storage import NO_METADATA, ObjectStorage, StorageRefusedError
from tier2.spark.compact import sources as compaction_sources
from tier2.spark.compact.group import COPY, REWRITE, Group
from tier2.spark.compact.task import UNFORESEEN
from tier2.spark.compact.work import WORK, CompactionSite, compaction_task

Body = Callable[[Bed], Awaitable[None]]


class WithoutCompose(MemoryObjectStorage):
    """A store that copies nothing itself."""

    @property
    def compose_bytes_min(self) -> int | None:
        return None


class WithOtherBytes(MemoryObjectStorage):
    """A store in which another job is faster: jobs' objects get other payload, under the same
    headers, with checksums that agree.
    """

    async def put(
        self,
        name: str,
        parts: Sequence[Buffer],
        unique_id: bytes,
        metadata: Mapping[str, str] = NO_METADATA,
    ) -> None:
        named = parse_object_name(name)
        if named is not None and named.kind == "compaction":
            data = bytearray().join(parts)
            header = parse_block_header(data)
            parts = encode_block(
                container_id=header.container_id,
                epoch=header.epoch,
                segment_id=header.segment_id,
                start_offset=header.start_offset,
                parts=[b"?" * header.payload_length],
                extent_bytes=header.extent_bytes,
                segment_name=header.segment_name,
            )
            parts = [*parts, data[header.block_length :]]
        await super().put(name, parts, unique_id, metadata)


def run(body: Body, storage: ObjectStorage | None = None) -> None:
    async def whole() -> None:
        bed = Bed(storage if storage is not None else MemoryObjectStorage(Runtime()))
        await body(bed)
        await bed.storage.close()

    asyncio.run(whole())


def virtual_bed() -> Bed:
    runtime = Runtime(clock=LoopClock(), random=random.Random(1), executor=inline_executor)
    return Bed(MemoryObjectStorage(runtime), runtime)


def flip(bed: Bed, name: str, position: int) -> None:
    assert isinstance(bed.storage, MemoryObjectStorage)
    stored = bed.storage.bucket.objects[name]
    data = bytearray(stored.data)
    data[position] ^= 1
    bed.storage.bucket.objects[name] = MemoryObject(
        bytes(data), stored.unique_id, stored.modified_ms
    )


async def many(bed: Bed, objects: int = 6, length: int = 50) -> list[str]:
    """Objects of two segments, a block of each."""
    return [
        await bed.put((1, bed.random_bytes(length)), (2, bed.random_bytes(length)))
        for _ in range(objects)
    ]


class TestSameBytes:
    def test_small_chunks_become_few_blocks_of_one_object(self) -> None:
        async def body(bed: Bed) -> None:
            old = await many(bed)
            [result] = await bed.compact(options())
            assert (result.outcome, result.first, result.method, result.chunks_after) == (
                "proposed",
                True,
                REWRITE,
                2,
            )
            assert await bed.objects() == [result.object_name] == list(bed.metadata.objects)
            assert set(bed.metadata.garbage) == set(old)
            assert result.object_bytes == bed.metadata.objects[result.object_name].record.size

        run(body)

    def test_on_a_file_system_too(self, tmp_path: Path) -> None:
        async def body(bed: Bed) -> None:
            await many(bed, objects=8, length=3000)
            [result] = await bed.compact(options(100_000, block_bytes=20_000))
            assert (result.method, result.chunks_after) == (REWRITE, 4)
            assert result.bytes_sent > result.object_bytes, "the object, and the proposal"

        run(body, FileObjectStorage(str(tmp_path), Runtime()))

    def test_large_blocks_are_copied_by_the_store(self) -> None:
        async def body(bed: Bed) -> None:
            await many(bed, objects=3, length=20_000)
            [result] = await bed.compact(options(200_000))
            assert (result.method, result.chunks_after) == (COPY, 6)
            assert result.bytes_copied == result.object_bytes
            assert result.bytes_received < 6 * 12_000, "headers and tables, not the payload"

        run(body)

    def test_copies_may_be_checked_to_the_last_byte_first(self) -> None:
        async def body(bed: Bed) -> None:
            names = await many(bed, objects=3, length=300)
            [group] = bed.plan(options(5000))
            flip(bed, names[1], -1)
            result = await bed.execute(group, options(5000), verify_copies=True)
            assert (result.outcome, result.method) == ("failed", "")
            assert names[1] in result.reason
            assert "extent" in result.reason
            assert await bed.objects() == []

        run(body)

    def test_a_store_without_copies_gets_the_same(self) -> None:
        async def body(bed: Bed) -> None:
            await many(bed, objects=3, length=300)
            [result] = await bed.compact(options(5000))
            assert (result.method, result.chunks_after) == (REWRITE, 6)

        run(body, WithoutCompose(Runtime()))

    def test_what_a_copy_would_leave_in_need_of_another_is_written_anew(self) -> None:
        async def body(bed: Bed) -> None:
            # The middle of each run is too short for a range of its own, and would come to lie
            # last.
            for length in (300, 50, 300):
                await bed.put((1, bed.random_bytes(length)))
            [result] = await bed.compact(options(5000, block_bytes=100))
            assert result.method == REWRITE

        run(body, MemoryObjectStorage(Runtime(), compose_bytes_min=250))

    @pytest.mark.parametrize("storage_type", [MemoryObjectStorage, WithoutCompose])
    @pytest.mark.parametrize("length", [50, 300])
    def test_blocks_of_merged_segments_and_parts_of_blocks(
        self, storage_type: type[MemoryObjectStorage], length: int
    ) -> None:
        async def body(bed: Bed) -> None:
            await bed.put(
                (1, bed.random_bytes(length)), (2, bed.random_bytes(length)), moved_by=1000
            )
            await bed.put((1, bed.random_bytes(length)), (2, bed.random_bytes(length)), cut=37)
            await bed.put(
                (1, bed.random_bytes(length)), (2, bed.random_bytes(length)), moved_by=7, cut=EXTENT
            )
            await bed.compact(options(5000))

        run(body, storage_type(Runtime()))

    def test_compressed_blocks_stay_compressed(self) -> None:
        async def body(bed: Bed) -> None:
            for number in range(6):
                await bed.put((1, bytes([number]) * 5000), codec=CODEC_ZSTD, extent_bytes=4096)
            chosen = options(100_000, block_bytes=100_000, extent_bytes=4096)
            [result] = await bed.compact(chosen)
            assert result.object_bytes < 3000
            header = parse_block_header(await bed.storage.get_range(result.object_name, 0, 128))
            assert (header.codec, header.segment_name) == (CODEC_ZSTD, "s/1")

        run(body, WithoutCompose(Runtime()))

    @pytest.mark.parametrize(("compression", "codec"), [("none", CODEC_NONE), ("zstd", CODEC_ZSTD)])
    def test_or_are_as_asked(self, compression: str, codec: int) -> None:
        async def body(bed: Bed) -> None:
            for number in range(6):
                await bed.put(
                    (1, bytes([number]) * 5000),
                    codec=CODEC_ZSTD if codec == CODEC_NONE else CODEC_NONE,
                )
            [result] = await bed.compact(
                options(100_000, compression=compression, extent_bytes=4096)
            )
            assert result.method == REWRITE
            header = parse_block_header(await bed.storage.get_range(result.object_name, 0, 128))
            assert header.codec == codec

        run(body)

    def test_a_mostly_dead_object_is_emptied(self) -> None:
        async def body(bed: Bed) -> None:
            dead = await bed.put(
                (1, bed.random_bytes(4000)),
                (2, bed.random_bytes(4000)),
                dead=[bed.random_bytes(30_000)],
            )
            alive = await bed.put((3, bed.random_bytes(4000)))
            [result] = await bed.compact(options(100_000, block_bytes=100_000))
            assert set(bed.metadata.objects) == {alive, result.object_name}
            assert set(bed.metadata.garbage) == {dead}
            assert result.bytes_received < 30_000, "what is dead is not fetched"

        run(body, WithoutCompose(Runtime()))

    def test_chunks_larger_than_one_request_are_read_in_pieces(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(compaction_sources, "RUN_BYTES", 64)

        async def body(bed: Bed) -> None:
            await many(bed, objects=4, length=333)
            results = await bed.compact(options())
            assert {result.method for result in results} == {REWRITE}

        run(body, WithoutCompose(Runtime()))

    @given(
        st.lists(
            st.tuples(
                st.lists(st.tuples(st.integers(1, 3), st.integers(1, 400)), min_size=1, max_size=4),
                st.sampled_from([CODEC_NONE, CODEC_ZSTD]),
                st.sampled_from([16, 100, 4096]),
                st.sampled_from([0, 5]),
                st.sampled_from([0, 20]),
                st.booleans(),
            ),
            min_size=2,
            max_size=8,
        ),
        st.sampled_from([300, 1000, 20_000]),
        st.sampled_from([1, 200, None]),
        st.sampled_from(["keep", "zstd"]),
    )
    @settings(max_examples=examples(150), deadline=None)
    def test_whatever_there_is(
        self,
        objects: list[tuple[list[tuple[int, int]], int, int, int, int, bool]],
        target: int,
        bytes_min: int | None,
        compression: str,
    ) -> None:
        async def body(bed: Bed) -> None:
            for blocks, codec, extent_bytes, moved_by, cut, repeats in objects:
                datas = [
                    (segment, bytes(length) if repeats else bed.random_bytes(length))
                    for segment, length in dict(blocks).items()
                ]
                await bed.put(
                    *datas, codec=codec, extent_bytes=extent_bytes, moved_by=moved_by, cut=cut
                )
            results = await bed.compact(options(target, compression=compression))
            assert all(result.outcome == "proposed" for result in results)

        storage = WithoutCompose(Runtime()) if bytes_min is None else None
        run(body, storage or MemoryObjectStorage(Runtime(), compose_bytes_min=bytes_min or 1))


class TestOnS3:
    @pytest.fixture(autouse=True)
    def _credentials(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for key, value in credentials().items():
            monkeypatch.setenv(key, value)

    def test_parts_are_copied_and_only_the_last_may_be_short(self) -> None:
        async def case(world: S3World) -> None:
            bed = Bed(world.storage)
            for length in (6 * MIB, 6 * MIB, MIB):
                await bed.put((1, bed.random_bytes(length)), extent_bytes=64 * 1024)
            sent = world.storage.statistics().bytes_sent
            [result] = await bed.compact(options(64 * MIB, block_bytes=MIB, extent_bytes=64 * 1024))
            assert (result.method, result.chunks_after) == (COPY, 3)
            assert world.storage.statistics().requests("copy_part") >= 2
            assert world.storage.statistics().bytes_sent - sent < 2 * MIB, (
                "the proposal, and what is too short a part"
            )

        run_case_with_threads(case)

    def test_what_has_a_short_part_in_front_is_written_anew(self) -> None:
        async def case(world: S3World) -> None:
            bed = Bed(world.storage)
            for length in (MIB, 6 * MIB, 6 * MIB):
                await bed.put((1, bed.random_bytes(length)), extent_bytes=64 * 1024)
            [result] = await bed.compact(options(64 * MIB, block_bytes=MIB, extent_bytes=64 * 1024))
            assert (result.method, result.chunks_after) == (REWRITE, 3)

        run_case_with_threads(case)


class TestWhatGoesWrong:
    def test_a_corrupt_source_fails_its_group_and_nothing_is_written(self) -> None:
        async def body(bed: Bed) -> None:
            names = await many(bed)
            [group] = bed.plan(options())
            flip(bed, names[3], -1)
            result = await bed.execute(group, options())
            assert result.outcome == "failed"
            assert names[3] in result.reason
            assert "extent" in result.reason
            assert (await bed.objects(), await bed.proposals()) == ([], [])

        run(body)

    def test_a_header_that_means_another_is_seen_before_it_is_copied(self) -> None:
        async def body(bed: Bed) -> None:
            names = await many(bed, objects=3, length=300)
            [group] = bed.plan(options(5000))
            flip(bed, names[1], 45)
            result = await bed.execute(group, options(5000))
            assert result.outcome == "failed"
            assert names[1] in result.reason
            assert "header" in result.reason
            assert await bed.objects() == []

        run(body)

    @pytest.mark.parametrize("length", [50, 300])
    def test_a_source_that_is_missing_or_cut_off_fails_its_group(self, length: int) -> None:
        async def body(bed: Bed) -> None:
            names = await many(bed, objects=4, length=length)
            chosen = options(5000)
            [group] = bed.plan(chosen)
            bucket = bed.storage.bucket  # type: ignore[attr-defined] # memory
            whole = bucket.objects[names[2]]
            bucket.objects[names[2]] = whole._replace(data=whole.data[:-20])
            short = await bed.execute(group, chosen)
            del bucket.objects[names[2]]
            gone = await bed.execute(group, chosen)
            assert (short.outcome, gone.outcome) == ("failed", "failed")
            assert names[2] in short.reason
            assert names[2] in gone.reason
            assert (await bed.objects(), await bed.proposals()) == ([], [])

        run(body)

    def test_a_catalog_that_cannot_be_right_fails_the_group(self) -> None:
        async def body(bed: Bed) -> None:
            names = await many(bed)
            [group] = bed.plan(options())
            group.objects[names[2]] = group.objects[names[2]]._replace(size=100)
            result = await bed.execute(group, options())
            assert result.outcome == "failed"
            assert names[2] in result.reason

        run(body)

    def test_the_second_attempt_says_so_and_leaves_garbage_of_its_own_name(self) -> None:
        async def body(bed: Bed) -> None:
            await many(bed)
            [group] = bed.plan(options())
            results = await asyncio.gather(
                bed.execute(group, options()), bed.execute(group, options())
            )
            assert {result.outcome for result in results} == {"proposed"}
            assert sorted(result.first for result in results) == [False, True]
            assert len(await bed.objects()) == 2
            [proposal] = await bed.proposals()
            assert [proposal.object.name] == [
                result.object_name for result in results if result.first
            ]
            await bed.commit()
            await bed.check()

        run(body)

    def test_a_group_that_is_proposed_is_not_worked_at_again(self) -> None:
        async def body(bed: Bed) -> None:
            await many(bed)
            [group] = bed.plan(options())
            first = await bed.execute(group, options())
            again = await bed.execute(group, options())
            assert (first.first, again.first, again.outcome, again.requests) == (
                True,
                False,
                "proposed",
                1,
            )
            assert len(await bed.objects()) == 1

        run(body)

    @pytest.mark.parametrize("method", ["put", "compose", "get_range", "head"])
    @pytest.mark.parametrize("after_effect", [False, True])
    @pytest.mark.parametrize("length", [50, 300])
    def test_a_storage_that_comes_back_is_waited_for(
        self, method: str, after_effect: bool, length: int
    ) -> None:
        async def body() -> None:
            bed = virtual_bed()
            await many(bed, length=length)
            bed.storage.fail(  # type: ignore[attr-defined] # memory
                method, times=3, after_effect=after_effect
            )
            results = await bed.compact(options(5000))
            assert [(result.outcome, result.first) for result in results] == [("proposed", True)]
            assert len(await bed.objects()) == 1, "one name, however often it was put"

        run_virtual(body())

    def test_one_that_stays_away_fails_the_group_with_its_reason(self) -> None:
        async def body() -> None:
            bed = virtual_bed()
            await many(bed)
            [group] = bed.plan(options())
            bed.storage.fail(  # type: ignore[attr-defined] # memory
                "put", times=99, error=lambda name: StorageRefusedError(name, "no such bucket")
            )
            begun = asyncio.get_running_loop().time()
            result = await bed.execute(group, options())
            assert (result.outcome, result.object_name) == ("failed", "")
            assert "no such bucket" in result.reason
            assert asyncio.get_running_loop().time() - begun < 60

        run_virtual(body())

    def test_an_object_that_is_not_as_it_was_built_is_seen_before_it_is_proposed(self) -> None:
        async def body(bed: Bed) -> None:
            await many(bed)
            [group] = bed.plan(options())
            result = await bed.execute(group, options())
            [name] = await bed.objects()
            assert (result.outcome, result.first) == ("failed", False)
            assert f"{name} block at 0" in result.reason
            assert await bed.proposals() == []

        run(body, WithOtherBytes(Runtime()))

    @slow(11)
    def test_an_unforeseen_error_fails_its_group_and_the_task_goes_on_with_the_next(
        self, tmp_path: Path
    ) -> None:
        async def two_groups() -> list[Group]:
            bed = Bed(FileObjectStorage(str(tmp_path), Runtime()))
            await many(bed)
            [good] = bed.plan(options())
            name = await bed.put(
                (3, bed.random_bytes(REPLACEMENT_CHUNKS_MAX + 1)), extent_bytes=4096
            )
            await bed.storage.close()
            # No plan has so many chunks in a run: the owner would refuse them, so no proposal can
            # be written.
            chunk, record = bed.metadata.segments[3].chunks.first, bed.metadata.objects[name].record
            chunks = tuple(
                chunk._replace(start_offset=offset, block_start_offset=offset, length=1)
                for offset in range(chunk.length)
            )
            bad = replace(
                good,
                group_id=16 * "0",
                runs=(Run(3, chunks),),
                names={3: "s/3"},
                objects={name: record},
            )
            return [bad, good]

        bad, good = asyncio.run(two_groups())
        chosen = options(100_000, block_bytes=100_000)
        site = CompactionSite(
            url=tmp_path.as_uri(), job_id=JOB, options=chosen, verify_copies=False
        )
        rows = [{"bin": 0, "data": group.encode()} for group in (bad, good)]
        [results] = compaction_task(site, lambda: 0)(
            iter([pa.RecordBatch.from_pylist(rows, schema=WORK)])
        )
        failed, proposed = results.to_pylist()
        assert (failed["group_id"], failed["outcome"], failed["first"]) == (
            bad.group_id,
            "failed",
            False,
        )
        assert failed["reason"].startswith(UNFORESEEN + "ValueError: ")
        assert (proposed["group_id"], proposed["outcome"], proposed["first"]) == (
            good.group_id,
            "proposed",
            True,
        )

    @pytest.mark.parametrize("length", [50, 300])
    def test_an_attempt_may_be_cut_off_anywhere(self, length: int) -> None:
        async def body() -> None:
            cuts = 0
            while True:
                bed = virtual_bed()
                await many(bed, length=length)
                [group] = bed.plan(options(5000))
                task = asyncio.get_running_loop().create_task(bed.execute(group, options(5000)))
                for _ in range(cuts):
                    await asyncio.sleep(0)
                if task.done():
                    break
                task.cancel()
                await settle()
                assert task.cancelled() or task.done()
                again = await bed.execute(group, options(5000))
                assert again.outcome == "proposed"
                await bed.commit()
                await bed.check()
                cuts += 1
            assert cuts > 5

        run_virtual(body())


def test_requests_and_bytes_are_counted() -> None:
    async def body(bed: Bed) -> None:
        await many(bed, objects=5)
        [result] = await bed.compact(options())
        # A poll for a proposal; a GET for each source; the object, what is read back of it, and its
        # proposal.
        assert result.requests == 1 + 5 + 3
        assert result.bytes_received > 10 * 50
        assert result.bytes_sent > result.object_bytes
        assert JOB in result.object_name

    run(body)
