"""Reads, listings and deletions of the S3 adapter through the fault proxy: right bytes or an error,
never wrong ones.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator

import pytest

from recovery.harness.services.fault_rules import Fault, FlipBit, Status, Truncate, WrongRange
from recovery.harness.services.s3_servers import S3Proxy
from recovery.harness.services.shared import shared_server
from segmentstore.contracts.chunks import ChunkRecord
from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.runtime import Runtime
from tests.store.harness import until
from tests.support.faulty_s3 import (
    BUCKET,
    FAULTS,
    WHOLE,
    FaultyS3,
    faulty_s3,
    own_part,
    run,
    settled,
    unique_id,
)
from tests.support.suites import slow
from tier2.block_reader import BlockReader
from tier2.object_builder import ObjectBuilder
from tier2.s3.s3_object_storage import S3ObjectStorage


@pytest.fixture(scope="module")
def service() -> Iterator[FaultyS3]:
    with faulty_s3(shared_server(S3Proxy)) as world:
        yield world


@pytest.fixture
def s3(service: FaultyS3) -> Iterator[FaultyS3]:
    with own_part(service) as world:
        yield world


# --- reading, checking, deleting
# -------------------------------------------------------------------

READ_FAULTS: dict[str, Fault] = {
    **FAULTS,
    "reply truncated with a shorter length": Truncate(lying=True),
    "another range": WrongRange(),
    "404 of something in between": Status(404, "Strange"),
}


def with_each(
    world: FaultyS3,
    faults: dict[str, Fault],
    case: Callable[[S3ObjectStorage, Fault], Awaitable[None]],
) -> None:
    """The case with one fault after another, through one storage."""

    async def all_of_them(storage: S3ObjectStorage) -> None:
        for words, fault in faults.items():
            try:
                await case(storage, fault)
            except BaseException as error:
                error.add_note(f"with the fault: {words}")
                raise

    run(world, all_of_them)


def test_a_read_gives_the_bytes_asked_for_or_an_error(s3: FaultyS3) -> None:
    async def case(storage: S3ObjectStorage, fault: Fault) -> None:
        await storage.put("name", [WHOLE], unique_id(1))
        assert await storage.get_range("name", 0, 100) == WHOLE[:100]
        rule = s3.proxy.fault(fault, "get")
        data, _ = await settled(lambda: storage.get_range("name", 500, 100))
        assert data == WHOLE[500:600]
        assert rule.taken == 1
        s3.proxy.release_late()

    with_each(s3, READ_FAULTS, case)


@slow(2)
def test_inspecting_listing_and_deleting_survive_a_fault_each(s3: FaultyS3) -> None:
    async def case(storage: S3ObjectStorage, fault: Fault) -> None:
        for name in ("a", "b"):
            await storage.put(name, [WHOLE], unique_id(1))
        s3.proxy.fault(fault, "head")
        head, _ = await settled(lambda: storage.head("a"))
        assert (head.name, head.size) == ("a", len(WHOLE))
        s3.proxy.fault(fault, "list")
        page, _ = await settled(lambda: anext(storage.list()))
        assert [each.name for each in page] == ["a", "b"]
        s3.proxy.fault(fault, "delete")
        await settled(lambda: storage.delete("a"))
        s3.proxy.release_late()
        assert s3.names() == ["b"]

    with_each(s3, FAULTS, case)


def test_unfinished_uploads_are_found_and_aborted_whatever_happens(s3: FaultyS3) -> None:
    async def case(storage: S3ObjectStorage, fault: Fault) -> None:
        key = f"{s3.prefix}/abandoned"
        s3.client.create_multipart_upload(Bucket=BUCKET, Key=key)
        assert s3.uploads() == ["abandoned"]
        s3.proxy.fault(fault, "list_uploads")
        found, _ = await settled(storage.list_unfinished)
        assert [each.name for each in found] == ["abandoned"]
        s3.proxy.fault(fault, "abort_upload")
        await settled(lambda: storage.abort_unfinished(found[0]))
        s3.proxy.release_late()
        # A request that was cut may still be at work in the server when the next one has found
        # nothing to do.
        await until(lambda: s3.uploads() == [])

    with_each(s3, FAULTS, case)


# --- blocks ---------------------------------------------------------------------------------------

CONTAINER = 3
PAYLOADS = [random.Random(number).randbytes(4000) for number in range(2)]


def blocks(
    world: FaultyS3, case: Callable[[BlockReader, list[ChunkRecord]], Awaitable[None]]
) -> None:
    """A reader of one object with two blocks of equal length."""

    async def body(storage: S3ObjectStorage) -> None:
        builder = ObjectBuilder(CONTAINER, 5, 1024)
        for number, payload in enumerate(PAYLOADS):
            builder.add(number, 0, [payload])
        await storage.put("blocks", builder.parts, unique_id(1))
        _, chunks = builder.finish("blocks", 0)
        reader = BlockReader(storage, CONTAINER, Runtime(), extent_bytes=1024)
        try:
            await case(reader, [chunk for _, chunk in chunks])
        finally:
            await reader.close()

    run(world, body)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.02, 0.5, 0.99])
def test_a_bit_that_changes_on_the_way_down_is_noticed_and_read_again(
    s3: FaultyS3, share: float
) -> None:
    async def case(reader: BlockReader, chunks: list[ChunkRecord]) -> None:
        s3.proxy.fault(FlipBit("reply", share), "get")
        assert await reader.read(chunks[0], 0, 4000) == PAYLOADS[0]
        assert reader.statistics().fetched_again == 1
        s3.proxy.fault(FlipBit("reply", share), "get", times=None)
        with pytest.raises(DataCorruptionError, match="blocks"):
            await reader.read(chunks[1], 0, 4000)
        s3.proxy.heal()
        assert await reader.read(chunks[1], 0, 4000) == PAYLOADS[1]

    blocks(s3, case)


def test_another_range_of_the_same_object_is_noticed_even_if_its_headers_lie(s3: FaultyS3) -> None:
    async def case(reader: BlockReader, chunks: list[ChunkRecord]) -> None:
        assert await reader.read(chunks[0], 0, 4000) == PAYLOADS[0]
        wrong = s3.proxy.fault(WrongRange(lying=True), "get")
        # The other block: whole and sound in itself, but not the one that was asked for.
        assert await reader.read(chunks[1], 0, 4000) == PAYLOADS[1]
        assert reader.statistics().fetched_again == 1
        assert wrong.taken == 1

    blocks(s3, case)


def test_another_extent_of_the_same_block_is_noticed(s3: FaultyS3) -> None:
    async def case(reader: BlockReader, chunks: list[ChunkRecord]) -> None:
        assert await reader.read(chunks[0], 0, 4000) == PAYLOADS[0]
        assert await reader.read(chunks[0], 0, 1024) == PAYLOADS[0][:1024]
        s3.proxy.fault(WrongRange(lying=True), "get")
        assert await reader.read(chunks[0], 1024, 1024) == PAYLOADS[0][1024:2048]
        assert reader.statistics().fetched_again == 1

    blocks(s3, case)
