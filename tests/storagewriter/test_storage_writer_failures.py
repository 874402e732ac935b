"""Tier 2 and the log failing, and segments changing during an upload.

Section 3.6: 93, 97, 100, 103, 105, 107, 108, 110, 111.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from recovery.harness.simulation.virtual_loop import DeadlockError, run_virtual
from segmentstore.contracts.errors import (
    AppendOutcomeUnknownError,
    ContainerStoppedError,
    DataCorruptionError,
    NotPrimaryError,
    SegmentNotFoundError,
    TierUnavailableError,
)
from storagewriter.config import StorageWriterConfig
from tests.storagewriter.fake_container import (
    LOG_LATENCY_S,
    FakeContainer,
    ReadOrRemoved,
    make_config,
    run,
)
from tier2.object_storage import ObjectExistsError

EPSILON_S = 0.1


class TestTier2Failures:
    @pytest.mark.parametrize("after_effect", [False, True])
    def test_a_failed_upload_is_tried_again_without_duplicates(self, after_effect: bool) -> None:
        """93, 103: with the reply lost, the object found under our name is recognised as ours."""

        async def body(c: FakeContainer) -> None:
            a = c.create("a")
            c.append(a, 50)
            c.storage.fail("put", 3, after_effect=after_effect)
            await c.writer.flush()
            assert c.object_count == 1
            assert c.writer.statistics().upload_failures == 3
            assert len(c.segment(a).chunks) == 1
            assert not c.metadata.garbage

        run(body)

    def test_a_long_outage_loses_nothing_and_says_so(self) -> None:
        """108: back-off is bounded, health names the failure until the next success."""

        async def body(c: FakeContainer) -> None:
            ids = [c.create(f"s{i}") for i in range(10)]
            assert c.writer.health() is None
            c.storage.fail("put", 10**9)
            for _ in range(100):
                for segment_id in ids:
                    c.append(segment_id, 7)
                await asyncio.sleep(36)
                c.check_covered()
            health = c.writer.health()
            assert health is not None
            assert health.startswith("tier2 memory:// failing since 2023-11-14T")
            # One upload of all ten, tried about every 15 to 30 s for an hour.
            assert 120 <= c.writer.statistics().upload_failures <= 250
            c.storage.heal()
            await c.writer.flush()
            assert c.writer.health() is None
            assert c.writer.unflushed_bytes == 0

        run(body)

    def test_a_foreign_object_under_our_name_leads_to_another_name(self) -> None:
        """103."""

        async def body(c: FakeContainer) -> None:
            a = c.create("a")
            c.append(a, 50)
            tried: list[str] = []

            def taken(name: str) -> ObjectExistsError:
                tried.append(name)
                return ObjectExistsError(name, "foreign")

            c.storage.fail("put", 2, taken)
            await c.writer.flush()
            assert len({*tried, *c.metadata.objects}) == 3
            assert c.writer.statistics().name_collisions == 2
            assert c.object_count == 1

        run(body)

    def test_the_unforeseen_stops_the_writer_and_is_reported(self) -> None:
        """108: not retried, kept, reported once; those who wait get it."""

        async def main() -> None:
            c = FakeContainer(make_config())
            c.writer.start()
            c.append(c.create("a"), 50)
            c.storage.fail("put", 1, lambda _: RuntimeError("planted"))
            with pytest.raises(ContainerStoppedError, match="planted"):
                await c.writer.flush()
            assert [str(each) for each in c.failures] == ["planted"]
            assert c.writer.failure is c.failures[0]
            assert "planted" in (c.writer.health() or "")
            with pytest.raises(ContainerStoppedError, match="planted"):
                await c.writer.flush()
            await c.writer.stop()

        run_virtual(main())

    def test_bytes_that_should_be_there_and_are_not_stop_the_writer(self) -> None:
        """100, 107: the source says a live segment is missing; planning again would never end."""

        async def main() -> None:
            c = FakeContainer(make_config())
            c.writer.start()
            a = c.create("a")
            c.append(a, 50)

            async def lost(ranges: Sequence[tuple[int, int, int]]) -> list[ReadOrRemoved]:
                return [SegmentNotFoundError("a") for _ in ranges]

            c.read_unflushed = lost  # type: ignore[method-assign]
            with pytest.raises(ContainerStoppedError):
                await c.writer.flush()
            assert isinstance(c.writer.failure, SegmentNotFoundError)
            await c.writer.stop()

        run_virtual(main())


class TestLogFailures:
    def test_bytes_that_only_a_log_that_does_not_answer_has_are_waited_for(self) -> None:
        """Health says so meanwhile, and nothing ends."""

        async def body(c: FakeContainer) -> None:
            a = c.create("a")
            c.append(a, 50)
            read = c.read_unflushed
            said: list[str | None] = []

            async def away(ranges: Sequence[tuple[int, int, int]]) -> list[ReadOrRemoved]:
                if len(said) == 5:
                    return await read(ranges)
                said.append(c.writer.health())
                raise TierUnavailableError("tier1", "two bookies of three are away")

            c.read_unflushed = away  # type: ignore[method-assign]
            await c.writer.flush()
            assert said[0] is None
            assert all("two bookies of three are away" in (sentence or "") for sentence in said[1:])
            assert c.writer.health() is None
            assert c.writer.unflushed_bytes == 0
            assert c.object_count == 1

        run(body)

    def test_bytes_that_a_successor_has_truncated_are_not_waited_for(self) -> None:
        """An owner that only flushes appends nothing, and would never learn that it was
        overtaken.
        """

        async def main() -> None:
            c = FakeContainer(make_config())
            c.writer.start()
            a = c.create("a")
            c.append(a, 50)

            async def gone(ranges: Sequence[tuple[int, int, int]]) -> list[ReadOrRemoved]:
                c.commit_error = NotPrimaryError(7)
                raise TierUnavailableError("tier1", "no such file")

            c.read_unflushed = gone  # type: ignore[method-assign]
            with pytest.raises(ContainerStoppedError):
                await c.writer.flush()
            await c.writer.stop()

        run_virtual(main())

    @pytest.mark.parametrize(
        "error", [ContainerStoppedError(7), NotPrimaryError(7), AppendOutcomeUnknownError(7)]
    )
    def test_the_log_ending_ends_the_writer(self, error: Exception) -> None:
        """107, 110: the container knows already, so it is not notified; the next owner flushes
        again from the log.
        """

        async def main() -> None:
            c = FakeContainer(make_config())
            c.writer.start()
            a = c.create("a")
            c.append(a, 50)
            c.commit_error = error
            with pytest.raises(ContainerStoppedError):
                await c.writer.flush()
            assert c.writer.failure is error
            assert not c.failures
            assert c.object_count == 1
            await c.writer.stop()
            after = c.restart(make_config())
            after.writer.start()
            await after.writer.flush()
            assert after.object_count == 2
            assert len(after.segment(a).chunks) == 1
            after.check_stored()
            await after.writer.stop()

        run_virtual(main())

    def test_replay_takes_up_what_is_not_flushed_and_no_more(self) -> None:
        """105, 110: data in Tier 2 in full, in part, and not at all."""

        async def main() -> None:
            c = FakeContainer(make_config(flush_age_s=1000.0))
            c.writer.start()
            full, part, none = (c.create(name) for name in ("full", "part", "none"))
            c.append(full, 30)
            c.append(part, 20)
            await c.writer.flush()
            c.append(part, 20)
            c.append(none, 5)
            await c.writer.stop()
            before = c.object_count
            after = c.restart(make_config(flush_age_s=1000.0))
            after.writer.start()
            after.check_covered()
            assert after.writer.unflushed_bytes == 25
            await asyncio.sleep(500)
            assert after.object_count == before
            await after.writer.flush()
            after.check_stored()
            assert [chunk.length for chunk in after.segment(part).chunks] == [20, 20]
            await after.writer.stop()

        run_virtual(main())

    def test_bytes_in_neither_tier_are_named_at_start(self) -> None:
        """100, 114."""

        async def main() -> None:
            c = FakeContainer(make_config())
            a = c.create("a")
            c.append(a, 50)
            c.segment(a).length += 1
            with pytest.raises(
                DataCorruptionError, match="51 bytes are not in Tier 2, and the log has 50"
            ):
                c.writer.start()
            await c.writer.stop()

        run_virtual(main())


class TestChangesDuringAnUpload:
    @pytest.mark.parametrize("after_read", [False, True])
    def test_deleted(self, after_read: bool) -> None:
        """97, 100, 111: ends quietly; what was uploaded becomes garbage through the log."""

        async def body(c: FakeContainer) -> None:
            a, b = c.create("a"), c.create("b")
            c.append(a, 50)
            c.append(b, 50)
            _hold(c, after_read=after_read)
            flush = asyncio.ensure_future(c.writer.flush())
            await asyncio.sleep(EPSILON_S)
            c.delete(a)
            _heal(c)
            await flush
            assert c.segment(b).storage_length == 50
            assert c.writer.unflushed_bytes == 0

        run(body)

    def test_deleted_alone_leaves_garbage_the_log_knows(self) -> None:
        """97."""

        async def body(c: FakeContainer) -> None:
            a = c.create("a")
            c.append(a, 50)
            _hold(c, after_read=True)
            flush = asyncio.ensure_future(c.writer.flush())
            await asyncio.sleep(EPSILON_S)
            c.delete(a)
            await asyncio.sleep(EPSILON_S)
            assert flush.done()
            _heal(c)
            await asyncio.sleep(60)
            assert set(c.storage.bucket.objects) == set(c.metadata.garbage)
            assert c.object_count == 1

        run(body)

    @pytest.mark.parametrize("after_read", [False, True])
    @pytest.mark.parametrize("offset", [10, 50, 60])
    def test_truncated(self, offset: int, after_read: bool) -> None:
        """96: in part, wholly, past what is in flight."""

        async def body(c: FakeContainer) -> None:
            a = c.create("a")
            c.append(a, 50)
            _hold(c, after_read=after_read)
            first = asyncio.ensure_future(c.writer.flush())
            await asyncio.sleep(EPSILON_S)
            c.append(a, 50)
            c.truncate(a, offset)
            c.check_covered()
            _heal(c)
            await first
            await c.writer.flush()
            assert c.segment(a).storage_length == 100
            assert c.stored(a) == bytes(c.bytes[a][offset:])

        run(body)

    def test_appended(self) -> None:
        """92: what comes during an upload is not in it, and follows in order."""

        async def body(c: FakeContainer) -> None:
            a = c.create("a")
            for _ in range(5):
                c.append(a, 110)
                await asyncio.sleep(0)
            await c.writer.flush()
            ends = [chunk.end_offset for chunk in c.segment(a).chunks]
            assert ends == sorted(ends)
            assert ends[-1] == 550

        run(body)


class TestStop:
    @pytest.mark.parametrize("where", ["reading", "uploading", "committing", "backing off"])
    def test_in_the_middle(self, where: str) -> None:
        """107, 110: nothing hangs, and the next owner loses nothing."""

        async def main() -> None:
            c = FakeContainer(make_config())
            c.writer.start()
            a = c.create("a")
            c.append(a, 50)
            flush = asyncio.ensure_future(c.writer.flush())
            if where == "reading":
                c.read_gate = asyncio.Event()
            elif where == "backing off":
                c.storage.fail("put", 10**9)
            if where == "committing":
                # The upload takes no virtual time, the commit a millisecond.
                await asyncio.sleep(LOG_LATENCY_S / 2)
                assert c.object_count == 1
                assert c.segment(a).storage_length == 0
            elif where == "uploading":
                for _ in range(3):
                    await asyncio.sleep(0)
            else:
                await asyncio.sleep(5)
            await c.writer.stop()
            with pytest.raises(
                TierUnavailableError if where == "backing off" else ContainerStoppedError
            ):
                await flush
            await c.writer.stop()
            after = c.restart(make_config())
            after.writer.start()
            await after.writer.flush()
            assert after.segment(a).storage_length == 50
            after.check_stored()
            await after.writer.stop()

        run_virtual(main())

    def test_never_started(self) -> None:
        async def main() -> None:
            c = FakeContainer(make_config())
            c.append(c.create("a"), 50)
            flush = asyncio.ensure_future(c.writer.flush())
            await asyncio.sleep(0)
            await c.writer.stop()
            with pytest.raises(ContainerStoppedError):
                await flush

        run_virtual(main())


def test_the_virtual_loop_names_a_deadlock() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    coroutine = main()
    with pytest.raises(DeadlockError):
        run_virtual(coroutine)


def test_an_idle_writer_sets_no_timer() -> None:
    """Nothing pending and no garbage: nothing wakes up, ever, where neither orphans nor mail are
    searched for.
    """

    async def main() -> None:
        c = FakeContainer(StorageWriterConfig(orphan_sweep_interval_s=0, mailbox_poll_interval_s=0))
        c.writer.start()
        await asyncio.Event().wait()

    with pytest.raises(DeadlockError):
        run_virtual(main())


def _hold(c: FakeContainer, *, after_read: bool) -> None:
    """Stop the next upload before its bytes are read, or while its request fails."""
    if after_read:
        c.storage.fail("put", 10**9)
    else:
        c.read_gate = asyncio.Event()


def _heal(c: FakeContainer) -> None:
    c.storage.heal()
    if c.read_gate is not None:
        c.read_gate.set()


def test_a_writer_that_ends_unasked_notifies_its_container_and_who_waits_for_a_flush() -> None:
    async def main() -> None:
        c = FakeContainer(make_config())
        c.writer.start()
        c.append(c.create("a"), 50)
        c.storage.fail("put", 10**9)
        flush = asyncio.ensure_future(c.writer.flush())
        await asyncio.sleep(1)
        assert c.writer._task is not None
        c.writer._task.cancel()
        outcome = (await asyncio.gather(flush, return_exceptions=True))[0]
        assert isinstance(outcome, ContainerStoppedError)
        assert "was cancelled" in str(outcome)
        assert [type(error) for error in c.failures] == [asyncio.CancelledError]
        assert "was cancelled" in str(c.writer.health())
        await c.writer.stop()

    run_virtual(main())
