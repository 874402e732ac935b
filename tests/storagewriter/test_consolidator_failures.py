"""Consolidation when something fails: nothing is lost, nothing held up, at most an orphan left."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from recovery.harness.simulation.virtual_loop import run_virtual
from segmentstore.contracts.errors import AppendOutcomeUnknownError
from tests.storagewriter.consolidating import GATED, LONG_S, WAYS, held, kinds, write
from tests.storagewriter.fake_container import (
    FakeContainer,
    StorageWithoutCompose,
    make_config,
    run,
)
from tests.support.chunk_edits import chunk_at
from tier2.object_storage import ObjectNotFoundError, ObjectRange

pytestmark = pytest.mark.usefixtures("active_or_idle")


class TestFailures:
    @WAYS
    def test_a_lost_reply_makes_one_object(self, storage_type: Any) -> None:
        async def body(c: FakeContainer) -> None:
            a = c.create("a")
            await write(c, a, 4)
            for method in ("compose", "put", "get_range"):
                c.storage.fail(method, 3, after_effect=True)
            await asyncio.sleep(60)
            assert kinds(c) == ["consolidation"]
            assert (
                set(c.storage.bucket.objects)
                == c.metadata.objects.keys() | c.metadata.garbage.keys()
            )
            assert c.writer.health() is None
            assert not c.writer.in_flight_names

        run(body, storage_type=storage_type, consolidation_bytes=400)

    @WAYS
    def test_an_outage_shows_in_health_and_is_waited_out(self, storage_type: Any) -> None:
        async def body(c: FakeContainer) -> None:
            a = c.create("a")
            await write(c, a, 4)
            c.storage.fail("compose", 10**9)
            c.storage.fail("get_range", 10**9)
            await asyncio.sleep(100)
            assert "consolidation in tier2" in (c.writer.health() or "")
            requests = c.storage.statistics().requests("get", "copy_part")
            await asyncio.sleep(1000)
            assert c.storage.statistics().requests("get", "copy_part") - requests < 80, (
                "with back-off"
            )
            await write(c, a, 1)
            c.storage.heal()
            await asyncio.sleep(60)
            assert c.writer.health() is None
            assert "consolidation" in kinds(c)

        run(body, storage_type=storage_type, consolidation_bytes=400)

    def test_an_outage_is_over_when_what_it_held_up_is_not_wanted_any_more(self) -> None:
        async def body(c: FakeContainer) -> None:
            a = c.create("a")
            await write(c, a, 4)
            c.storage.fail("compose", 1)
            c.storage.fail("get_range", 1)
            await asyncio.sleep(1.5)
            assert "consolidation in tier2" in (c.writer.health() or "")
            c.delete(a)
            c.storage.heal()
            await asyncio.sleep(60)
            assert c.writer.health() is None

        run(
            body,
            storage_type=partial(StorageWithoutCompose, compose_bytes_min=None),
            consolidation_bytes=400,
        )

    @WAYS
    def test_a_lost_source_is_left_alone_and_holds_up_nothing(self, storage_type: Any) -> None:
        async def body(c: FakeContainer) -> None:
            a = c.create("a")
            await write(c, a, 4)
            lost = chunk_at(c.segment(a), 1).object_name
            kept = c.storage.bucket.objects.pop(lost)
            await asyncio.sleep(LONG_S)
            assert c.writer.statistics().consolidation_failures == 1
            assert lost in (c.writer.health() or "")
            assert not c.writer.in_flight_names
            await write(c, a, 4)
            await asyncio.sleep(LONG_S)
            assert "consolidation" in kinds(c)
            assert lost in c.metadata.objects
            assert c.writer.statistics().consolidation_failures == 1
            c.storage.bucket.objects[lost] = kept
            c.truncate(a, 250)
            await asyncio.sleep(LONG_S)
            c.append(a, 100)
            await asyncio.sleep(LONG_S)
            assert c.writer.health() is None, "it is no longer needed"

        run(body, storage_type=storage_type, consolidation_bytes=400)

    def test_a_corrupt_source_is_left_alone(self) -> None:
        async def body(c: FakeContainer) -> None:
            a = c.create("a")
            await write(c, a, 4)
            bad = chunk_at(c.segment(a), 2).object_name
            good = c.storage.bucket.objects[bad]
            rotten = bytearray(good.data)
            rotten[-1] ^= 1
            c.storage.bucket.objects[bad] = good._replace(data=bytes(rotten))
            await asyncio.sleep(LONG_S)
            assert c.writer.statistics().consolidation_failures == 1
            assert bad in (c.writer.health() or "")
            assert kinds(c) == ["flush"] * 4
            await write(c, a, 1)
            await asyncio.sleep(LONG_S)
            assert bad in c.metadata.objects
            assert "consolidation" in kinds(c)
            c.storage.bucket.objects[bad] = good

        storage_type = partial(StorageWithoutCompose, compose_bytes_min=None)
        run(body, storage_type=storage_type, consolidation_bytes=400)

    @WAYS
    def test_an_unknown_outcome_in_the_log_stops_the_writer(self, storage_type: Any) -> None:
        async def main() -> None:
            c = FakeContainer(make_config(consolidation_bytes=400), storage_type=storage_type)
            c.writer.start()
            a = c.create("a")
            await write(c, a, 4)
            c.commit_error = AppendOutcomeUnknownError(7)
            await asyncio.sleep(LONG_S)
            assert "AppendOutcomeUnknownError" in (c.writer.health() or "")
            assert not c.failures, "the log's own failure is the container's to tell"
            await c.writer.stop()

        run_virtual(main())

    @GATED
    def test_cut_off_anywhere_it_leaves_at_most_an_orphan(self, storage_type: Any) -> None:
        async def main() -> None:
            config = make_config(consolidation_bytes=400)
            c = FakeContainer(config, storage_type=storage_type)
            c.writer.start()
            a = c.create("a")
            await write(c, a, 4)
            await held(c)
            await c.writer.stop()
            c = c.restart(config)
            assert kinds(c) == ["flush"] * 4
            c.check_stored()
            c.writer.start()
            await asyncio.sleep(LONG_S)
            assert kinds(c) == ["consolidation"]
            await c.writer.stop()

        run_virtual(main())


def test_a_source_that_is_lost_is_reported_by_name() -> None:
    """What a store says of a source it cannot copy from names that source, not what is being
    made.
    """

    async def main() -> None:
        c = FakeContainer(make_config())
        with pytest.raises(ObjectNotFoundError) as caught:
            await c.storage.compose("00/new", [ObjectRange("00/old", 0, 5)], bytes(16))
        assert caught.value.name == "00/old"

    run_virtual(main())
