"""Uploads in parallel: as fast as there are of them, bounded in bytes, visible in the order of the
log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from segmentstore.contracts.checksum import Buffer
from tests.storagewriter.fake_container import FakeContainer, run
from tier2.memory_object_storage import MemoryObjectStorage
from tier2.object_storage import NO_METADATA

LATENCY_S = 0.1


class SlowStorage(MemoryObjectStorage):
    """As far away as a store in another town."""

    async def put(
        self,
        name: str,
        parts: Sequence[Buffer],
        unique_id: bytes,
        metadata: Mapping[str, str] = NO_METADATA,
    ) -> None:
        await asyncio.sleep(LATENCY_S)
        await super().put(name, parts, unique_id, metadata)


class TestUploadPool:
    @pytest.mark.parametrize("uploads_max", [1, 4, 16])
    def test_throughput_is_concurrency_over_latency(self, uploads_max: int) -> None:
        objects = 64

        async def body(c: FakeContainer) -> None:
            for number in range(objects):
                c.append(c.create(f"s{number}"), 100)
            begun = asyncio.get_running_loop().time()
            await c.writer.flush()
            took = asyncio.get_running_loop().time() - begun
            least = objects / uploads_max * LATENCY_S
            assert least <= took <= 1.1 * least + 0.1

        run(
            body,
            storage_type=SlowStorage,
            uploads_max=uploads_max,
            upload_bytes_max=100 * uploads_max,
            object_bytes=100,
        )

    def test_bytes_in_flight_are_bounded_whatever_the_number(self) -> None:
        async def body(c: FakeContainer) -> None:
            for number in range(20):
                c.append(c.create(f"s{number}"), 100)
            while c.writer.unflushed_bytes:
                await asyncio.sleep(LATENCY_S / 10)
                assert c.writer.statistics().upload_bytes_in_flight <= 300
            assert c.storage.statistics().requests("put") == 20

        run(body, storage_type=SlowStorage, uploads_max=20, upload_bytes_max=300, object_bytes=100)

    def test_what_becomes_visible_goes_by_the_log_not_by_the_upload(self) -> None:
        class FirstIsLast(MemoryObjectStorage):
            puts = 0

            async def put(
                self,
                name: str,
                parts: Sequence[Buffer],
                unique_id: bytes,
                metadata: Mapping[str, str] = NO_METADATA,
            ) -> None:
                self.puts += 1
                await asyncio.sleep(10 if self.puts == 1 else 0.1)
                await super().put(name, parts, unique_id, metadata)

        async def body(c: FakeContainer) -> None:
            a, b = c.create("a"), c.create("b")
            for _ in range(3):
                c.append(a, 100)
                c.append(b, 100)
                await asyncio.sleep(1)
            assert c.segment(a).storage_length == 0, (
                "what is behind a late upload of its segment waits"
            )
            assert c.segment(b).storage_length == 300
            await c.writer.flush()
            assert [chunk.start_offset for chunk in c.segment(a).chunks] == [0, 100]

        run(body, storage_type=FirstIsLast)

    def test_a_lone_hot_segment_goes_in_full_objects(self) -> None:
        async def body(c: FakeContainer) -> None:
            a = c.create("a")
            for _ in range(200):
                c.append(a, 20)
                await asyncio.sleep(LATENCY_S / 20)
            await asyncio.sleep(1)
            lengths = [chunk.length for chunk in c.segment(a).chunks]
            assert set(lengths) == {400}
            assert c.writer.unflushed_bytes < 400

        run(
            body,
            storage_type=SlowStorage,
            flush_bytes=400,
            object_bytes=400,
            unflushed_target_bytes=400,
            flush_age_s=1000.0,
            consolidation=False,
        )
