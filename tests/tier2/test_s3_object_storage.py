"""The S3 adapter on moto: the contract, and what one storage must do around single requests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from recovery.harness.services.s3_servers import S3Proxy, credentials
from segmentstore.contracts.byte_sizes import MIB
from tests.contracts.object_storage_contract import listed, unique_id
from tests.tier2.s3_transport import (
    S3World,
    cut,
    reply_lost,
    run_case,
    run_case_with_threads,
    waits,
)
from tier2.object_storage import (
    InvalidRangeError,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectRange,
    StorageRefusedError,
    StorageUnavailableError,
    UnfinishedUpload,
)
from tier2.request_statistics import Operation


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in credentials().items():
        monkeypatch.setenv(key, value)


def parts_of(count: int) -> list[bytes]:
    return [bytes([number]) * MIB for number in range(count)]


def test_of_concurrent_uploads_of_one_name_one_wins_and_ones_own_all_succeed() -> None:
    async def case(world: S3World) -> None:
        storage = world.storage
        puts = (storage.put("x", [bytes([n])], unique_id(n)) for n in range(6))
        outcomes = await asyncio.gather(*puts, return_exceptions=True)
        winners = [n for n, outcome in enumerate(outcomes) if outcome is None]
        assert len(winners) == 1
        assert sum(isinstance(outcome, ObjectExistsError) for outcome in outcomes) == 5
        await asyncio.gather(*(storage.put("y", [b"mine"], unique_id(9)) for _ in range(6)))
        assert world.raw() == {"x": bytes(winners), "y": b"mine"}
        assert world.unfinished() == 0

    # moto checks the condition of a Complete and acts on it in two steps: several win there.
    run_case_with_threads(case, kind=S3Proxy, multipart_bytes=1)


def test_a_put_in_doubt_is_searched_for_before_it_is_sent_again() -> None:
    async def case(world: S3World) -> None:
        world.transport.fail("complete_upload", *[reply_lost] * 4)
        world.transport.fail("head", *[cut] * 4)
        with pytest.raises(StorageUnavailableError):
            await world.storage.put("x", [b"mine"], unique_id(1))
        await world.storage.put("x", [b"mine"], unique_id(1))
        assert world.raw() == {"x": b"mine"}
        assert world.storage.statistics().requests("begin_upload") == 1
        assert world.unfinished() == 0

    run_case(case, multipart_bytes=1)


def test_every_request_is_counted() -> None:
    async def case(world: S3World) -> None:
        storage = world.storage
        await storage.put("a", [b"123"], unique_id(1))
        await storage.put("large", [b"12345"], unique_id(2))
        assert await storage.get_range("a", 1, 2) == b"23"
        assert await storage.head("gone") is None
        await listed(storage)
        await storage.list_unfinished()
        await storage.delete("a")
        statistics = storage.statistics()
        kinds: Sequence[Operation] = (
            "put",
            "begin_upload",
            "put_part",
            "complete_upload",
            "get",
            "head",
            "list",
            "list_uploads",
            "delete",
        )
        # The second GET asks why the HEAD said no.
        assert [statistics.requests(kind) for kind in kinds] == [1, 1, 1, 1, 2, 1, 1, 1, 1]
        assert statistics.requests() == sum(world.transport.sent.values())
        assert (statistics.bytes_sent, statistics.bytes_received, statistics.errors) == (8, 2, 0)
        assert all(each.in_flight == 0 for each in statistics.operations.values())

    run_case(case, multipart_bytes=4)


def test_a_large_object_goes_up_in_parts() -> None:
    async def case(world: S3World) -> None:
        await world.storage.put("x", parts_of(13), unique_id(1))
        assert world.raw() == {"x": b"".join(parts_of(13))}
        statistics = world.storage.statistics()
        assert statistics.requests("put_part") == 3
        assert statistics.requests("put") == 0
        assert statistics.bytes_sent == 13 * MIB
        await world.storage.put("small", [b"1"], unique_id(2))
        assert world.storage.statistics().requests("put") == 1

    run_case_with_threads(case, part_bytes=5 * MIB, multipart_bytes=10 * MIB)


def test_objects_are_composed_by_the_store() -> None:
    async def case(world: S3World) -> None:
        storage = world.storage
        data = b"".join(parts_of(12))
        await storage.put("source", [data], unique_id(1))
        await storage.put("tail", [b"0123456789"], unique_id(2))
        ranges = [
            ObjectRange("source", 5, 6 * MIB),
            ObjectRange("source", MIB, 11 * MIB),
            ObjectRange("tail", 2, 7),
        ]
        expected = data[5 : 5 + 6 * MIB] + data[MIB:] + b"2345678"
        for _ in range(2):
            await storage.compose("made", ranges, unique_id(3))
            assert world.raw()["made"] == expected
        assert world.unfinished() == 0
        assert storage.compose_bytes_min == 5 * MIB
        with pytest.raises(ObjectExistsError):
            await storage.compose("made", ranges, unique_id(4))
        with pytest.raises(ValueError):
            await storage.compose(
                "other", [ObjectRange("tail", 0, 5), ObjectRange("source", 0, 5)], unique_id(5)
            )

    run_case(case)


def test_composing_what_is_not_there_stores_nothing() -> None:
    async def case(world: S3World) -> None:
        storage = world.storage
        await storage.put("source", [bytes(6 * MIB)], unique_id(1))
        for ranges, error, name in (
            (
                [ObjectRange("gone", 0, 6 * MIB), ObjectRange("source", 0, 1)],
                ObjectNotFoundError,
                "gone",
            ),
            (
                [ObjectRange("source", 0, 6 * MIB), ObjectRange("gone", 0, 1)],
                ObjectNotFoundError,
                "gone",
            ),
            (
                [ObjectRange("source", 0, 7 * MIB), ObjectRange("source", 0, 1)],
                InvalidRangeError,
                "made",
            ),
            (
                [ObjectRange("source", 0, 6 * MIB), ObjectRange("source", 6 * MIB - 1, 2)],
                InvalidRangeError,
                "source",
            ),
        ):
            with pytest.raises(error) as caught:
                await storage.compose("made", ranges, unique_id(2))
            assert caught.value.name == name
            assert list(world.raw()) == ["source"]
            assert world.unfinished() == 0

    run_case(case)


def test_unfinished_uploads_are_found_and_aborted() -> None:
    async def case(world: S3World) -> None:
        for key in ("some/prefix/a/x", "some/prefix/b", "elsewhere", "some/prefix/folder/"):
            world.plain.create_multipart_upload(Bucket=world.bucket, Key=key)
        storage = world.storage
        assert [upload.name for upload in await storage.list_unfinished()] == ["a/x", "b"]
        (upload,) = await storage.list_unfinished("a/")
        assert isinstance(upload, UnfinishedUpload)
        for _ in range(2):
            await storage.abort_unfinished(upload)
        assert [upload.name for upload in await storage.list_unfinished()] == ["b"]

    run_case(case)


def test_folders_created_by_consoles_are_not_listed() -> None:
    async def case(world: S3World) -> None:
        for key in (
            "some/prefix/",
            "some/prefix/a/",
            "some/prefix/a/x",
            "some/prefix/a/y y",
            "some/prefixed",
        ):
            world.plain.put_object(Bucket=world.bucket, Key=key, Body=b"")
        assert [found.name for found in await listed(world.storage)] == ["a/x"]

    run_case(case, page_objects=1)


def test_a_bucket_that_is_missing_is_said_by_every_call() -> None:
    async def case(world: S3World) -> None:
        storage = world.storage
        world.plain.delete_bucket(Bucket=world.bucket)
        for call in (
            lambda: storage.put("x", [b"1"], unique_id(1)),
            lambda: storage.put("x", parts_of(10), unique_id(1)),
            lambda: storage.get_range("x", 0, 1),
            lambda: storage.head("x"),
            lambda: storage.delete("x"),
            lambda: listed(storage),
            storage.list_unfinished,
            storage.check,
        ):
            with pytest.raises(StorageRefusedError) as caught:
                await call()
            assert (
                "NoSuchBucket (The specified bucket does not exist): the bucket "
                f"{world.bucket} does not" in str(caught.value)
            )

    run_case(case, multipart_bytes=10 * MIB)


def test_a_cancelled_upload_is_aborted_and_closing_waits_for_that() -> None:
    async def case(world: S3World) -> None:
        begun, go_on = asyncio.Event(), threading.Event()
        world.transport.fail("put_part", *[waits(begun, go_on)] * 8)
        put = asyncio.create_task(world.storage.put("x", parts_of(40), unique_id(1)))
        await begun.wait()
        put.cancel()
        with pytest.raises(asyncio.CancelledError):
            await put
        go_on.set()
        await world.storage.close()
        assert world.raw() == {}
        assert world.unfinished() == 0
        assert world.transport.sent["put_part"] < 8

    run_case_with_threads(case, part_bytes=5 * MIB, multipart_bytes=10 * MIB)


def test_closing_ends_an_upload_under_way() -> None:
    async def case(world: S3World) -> None:
        begun, go_on = asyncio.Event(), threading.Event()
        world.transport.fail("put_part", *[waits(begun, go_on)] * 8)
        put = asyncio.create_task(world.storage.put("x", parts_of(40), unique_id(1)))
        await begun.wait()
        closing = asyncio.create_task(world.storage.close())
        await asyncio.sleep(0)
        go_on.set()
        await closing
        with pytest.raises(StorageUnavailableError) as caught:
            await put
        assert caught.value.kind == "closed"
        assert world.raw() == {}
        assert world.unfinished() == 0

    run_case_with_threads(case, part_bytes=5 * MIB, multipart_bytes=10 * MIB)
