"""Every error of the public API is reachable, is a SegmentStoreError, and says what it is about;
no future stays unresolved.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Awaitable, Sequence
from pathlib import Path

import pytest

import segmentstore
from segmentstore import (
    AppendOutcomeUnknownError,
    ContainerStoppedError,
    NotPrimaryError,
    SegmentStore,
    SegmentStoreError,
    TierUnavailableError,
)
from segmentstore.contracts.errors import describe
from segmentstore.contracts.runtime import Runtime
from tests.store.harness import WorldDisk, attribute, open_lazy, open_tiny, read_all, run, until
from tests.store.test_segment_reads import waiting_readers

NAMED_BY_THE_ISSUE = [
    "SegmentNotFoundError",
    "SegmentExistsError",
    "SegmentSealedError",
    "SegmentTruncatedError",
    "EndOfSegmentError",
    "BadOffsetError",
    "BadAttributeUpdateError",
    "InvalidNameError",
    "AppendTooLargeError",
    "StoreInUseError",
    "NotAStoreError",
    "ContainerStoppedError",
    "AppendOutcomeUnknownError",
    "NotPrimaryError",
    "DataCorruptionError",
    "TierUnavailableError",
    "ConfigError",
]


@pytest.mark.parametrize("name", NAMED_BY_THE_ISSUE)
def test_the_errors_named_by_the_issue_are_public(name: str) -> None:
    error = getattr(segmentstore, name)
    assert issubclass(error, SegmentStoreError)
    assert name in segmentstore.__all__
    assert (
        "move" in (error.__doc__ or "")
        or "Try again" in error.__doc__
        or "Ask the new owner" in error.__doc__
    )


async def settled(futures: Sequence[Awaitable[object]]) -> list[object]:
    """What became of them, within seconds."""
    async with asyncio.timeout(60):
        return await asyncio.gather(*futures, return_exceptions=True)


async def everything_at_once(store: SegmentStore) -> list[Awaitable[object]]:
    """One of each call, on its way; the readers among them wait at the tail."""
    writer = store.writer("x", attribute(1))
    readers = [
        asyncio.ensure_future(store.read("x", 3, 9, wait=50)),
        asyncio.ensure_future(follow(store)),
    ]
    await until(lambda: waiting_readers(store) >= 1)
    futures: list[Awaitable[object]] = [store.append("x", b"%d" % number) for number in range(100)]
    futures += [writer.append(b"event") for _ in range(10)]
    coroutines = [
        store.create_segment("new"),
        store.seal("y"),
        store.truncate("x", 1),
        store.delete("z"),
        store.flush(),
        store.checkpoint(),
        store.update_attributes("x", []),
    ]
    return futures + readers + [asyncio.ensure_future(coroutine) for coroutine in coroutines]


async def follow(store: SegmentStore) -> bytes:
    return b"".join([chunk async for chunk in store.reader("x", 3, follow=True)])


async def fill(store: SegmentStore) -> None:
    for name in "xyz":
        await store.create_segment(name)
        await store.append(name, b"abc")


async def refused_from_now_on(store: SegmentStore, error: type[SegmentStoreError]) -> None:
    for call in (
        lambda: store.append("x", b""),
        lambda: store.append_batch("x", [b""]),
        lambda: store.read("x", 0, 1),
        lambda: store.create_segment("q"),
        lambda: store.seal("x"),
        lambda: store.truncate("x", 1),
        lambda: store.merge("x", "y"),
        lambda: store.delete("x"),
        store.flush,
        lambda: store.flush("x"),
        store.checkpoint,
        lambda: store.get_info("x"),
    ):
        with pytest.raises(error):
            async with asyncio.timeout(60):
                await call()


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8, 20])
def test_close_resolves_every_call(tmp_path: Path, turns: int) -> None:
    async def main() -> None:
        store = await open_tiny(tmp_path / "s")
        await fill(store)
        calls = await everything_at_once(store)
        for _ in range(turns):
            await asyncio.sleep(0)
        await store.close()
        results = await settled(calls)
        acknowledged = results[:100]
        assert all(isinstance(result, int) for result in acknowledged), (
            "what was taken becomes durable"
        )
        for result in results:
            assert not isinstance(result, BaseException) or isinstance(result, SegmentStoreError), (
                result
            )
        await refused_from_now_on(store, ContainerStoppedError)
        async with open_tiny(tmp_path / "s") as again:
            data = await read_all(again, "x", (await again.get_info("x")).start_offset)
            assert data.endswith(b"".join(b"%d" % number for number in range(100)) + b"event" * 10)

    run(main())


@pytest.mark.parametrize("turns", [0, 1, 3, 8])
def test_a_failing_log_resolves_every_call_and_distinguishes_known_from_unknown(
    tmp_path: Path, turns: int
) -> None:
    async def main() -> None:
        disk = WorldDisk()
        # Nothing of its own may go to the log before the calls: it would be the first to fail.
        store = await open_tiny(tmp_path / "s", runtime=Runtime(disk=disk), flush_age_s=1000.0)
        await fill(store)
        # Before them: the first append goes to the log's thread in the very call.
        disk.log_sync_fails()
        calls = await everything_at_once(store)
        for _ in range(turns):
            await asyncio.sleep(0)
        results = await settled(calls)
        kinds = {type(result) for result in results if isinstance(result, BaseException)}
        assert kinds <= {AppendOutcomeUnknownError, ContainerStoppedError, TierUnavailableError}
        unknown = next(
            result for result in results if isinstance(result, AppendOutcomeUnknownError)
        )
        assert unknown.container_id == 0
        assert isinstance(unknown.cause, TierUnavailableError)
        assert not any(isinstance(result, int) for result in results[:100]), "nothing was durable"
        await refused_from_now_on(store, ContainerStoppedError)
        health = store.stats()["health"]
        assert isinstance(health, list)
        assert "stopped" in health[0]
        disk.heal()
        await store.close()
        async with open_tiny(tmp_path / "s", runtime=Runtime(disk=disk)) as again:
            data = await read_all(again, "x", (await again.get_info("x")).start_offset)
            sent = b"".join(b"%d" % number for number in range(100)) + b"event" * 10
            assert (b"abc" + sent).find(data) >= 0

    run(main())


def test_fencing_resolves_every_call_and_the_new_owner_goes_on(tmp_path: Path) -> None:
    """The locks are taken away (a file system that forgets them): the epoch alone must fence."""

    async def main() -> None:
        store = await open_tiny(tmp_path / "s")
        await fill(store)
        # Nothing of its own may go to the log meanwhile: it would be the first to be notified of
        # the new owner.
        await store.flush()
        for path in [tmp_path / "s" / "lock", *(tmp_path / "s" / "log").rglob("*LOCK*")]:
            path.unlink()
        cache = tmp_path / "s" / "cache"
        cache.rename(tmp_path / "old cache")
        async with open_tiny(tmp_path / "s") as owner:
            await owner.append("x", b"new owner")
            results = await settled(await everything_at_once_without_waiting(store))
            assert {type(result) for result in results} <= {
                NotPrimaryError,
                AppendOutcomeUnknownError,
            }
            assert any(isinstance(result, AppendOutcomeUnknownError) for result in results)
            await refused_from_now_on(store, NotPrimaryError)
            await owner.append("x", b"!")
            assert await read_all(owner, "x") == b"abcnew owner!"
            await owner.flush()
        await store.close()

    async def everything_at_once_without_waiting(store: SegmentStore) -> list[Awaitable[object]]:
        return [store.append("x", b"stale %d" % number) for number in range(50)]

    run(main())


def test_too_much_waiting_is_refused_and_nothing_of_it_taken(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s", queue_bytes_max=5000) as store:
            await store.create_segment("x")
            futures = [store.append("x", b"%03d" % number * 33) for number in range(100)]
            results = await settled(futures)
            taken = [number for number, result in enumerate(results) if isinstance(result, int)]
            assert 5 <= len(taken) < 100
            assert taken == list(range(len(taken))), "the first, not any"
            for result in results:
                assert isinstance(result, int | TierUnavailableError)
            assert await read_all(store, "x") == b"".join(b"%03d" % number * 33 for number in taken)
            await store.append("x", b"again")

    run(main())


def test_a_read_of_what_tier2_does_not_give_says_so_and_works_later(tmp_path: Path) -> None:
    async def main() -> None:
        disk = WorldDisk()
        async with open_lazy(tmp_path / "s", runtime=Runtime(disk=disk)) as store:
            await store.create_segment("x")
            await store.append("x", b"in tier 2 " * 20)
            await store.flush()
            await store.checkpoint()
        async with open_lazy(tmp_path / "s", runtime=Runtime(disk=disk)) as store:
            disk.tier2_away()
            with pytest.raises(TierUnavailableError) as caught:
                await read_all(store, "x")
            assert caught.value.tier == "tier2"
            await store.append("x", b"!")
            assert await store.read("x", 200, 10) == b"!"
            disk.heal()
            assert await read_all(store, "x") == b"in tier 2 " * 20 + b"!"

    run(main())


def test_a_flush_that_cannot_end_is_ended_by_close(tmp_path: Path) -> None:
    async def main() -> None:
        disk = WorldDisk()
        store = await open_tiny(tmp_path / "s", runtime=Runtime(disk=disk))
        await fill(store)
        disk.tier2_away()
        await store.append("x", bytes(500))
        flushes = [asyncio.ensure_future(store.flush()), asyncio.ensure_future(store.flush("x"))]
        await asyncio.sleep(0.05)
        assert not any(flush.done() for flush in flushes)
        await store.close()
        for result in await settled(flushes):
            error = result.exceptions[0] if isinstance(result, BaseExceptionGroup) else result
            assert isinstance(error, TierUnavailableError | ContainerStoppedError)
            assert error is result, "a group is not what `except SegmentStoreError` catches"
        assert os.listdir(tmp_path / "s")

    run(main())


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "MemoryError"),
        (KeyError("x"), "KeyError: 'x'"),
        (asyncio.CancelledError(), "CancelledError"),
        (OSError(errno.ENOSPC, "No space left on device"), "[Errno 28] No space left on device"),
        (OSError(), "OSError"),
        (TierUnavailableError("tier2", "away"), "tier2 is not available: away"),
    ],
)
def test_what_stopped_a_container_is_always_named(error: BaseException, said: str) -> None:
    assert describe(error) == said
    assert str(ContainerStoppedError(0, error)) == f"container 0 is stopped by {said}"
    assert f"({said})" in str(AppendOutcomeUnknownError(0, error))


def test_a_log_that_runs_out_of_memory_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        disk = WorldDisk()
        store = await open_tiny(tmp_path / "s", runtime=Runtime(disk=disk))
        await store.create_segment("a")
        disk.trap = lambda call, path: (
            MemoryError() if call == "pwrite" and f"{os.sep}log{os.sep}" in path else None
        )
        with pytest.raises(AppendOutcomeUnknownError, match="MemoryError"):
            await store.append("a", b"x")
        with pytest.raises(ContainerStoppedError, match="MemoryError"):
            await store.append("a", b"x")
        assert "writing the log in" in str(store.stats()["health"])
        assert "MemoryError" in str(store.stats()["health"])
        await store.close()

    with caplog.at_level("ERROR"):
        run(body())
    (said,) = [
        record.getMessage() for record in caplog.records if " stops: " in record.getMessage()
    ]
    assert said.startswith("container 0 stops: ")
    assert said.endswith("MemoryError")
