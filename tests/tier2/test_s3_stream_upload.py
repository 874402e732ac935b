"""An upload whose parts come one after another, and what can happen to it on S3."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

import pytest

from recovery.harness.services.s3_servers import credentials
from segmentstore.contracts.byte_sizes import MIB
from segmentstore.contracts.checksum import Buffer
from tests.contracts.object_storage_contract import unique_id
from tests.tier2.s3_transport import (
    Fault,
    S3World,
    cut,
    passes,
    reply_lost,
    run_case,
    run_case_with_threads,
    says,
    twice,
)
from tier2.object_storage import ObjectExistsError, StorageRefusedError, StorageUnavailableError
from tier2.request_statistics import Operation

WHOLE = b"a" * 5 * MIB + b"b" * 5 * MIB + b"c"
METADATA = {"role": "data"}


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in credentials().items():
        monkeypatch.setenv(key, value)


async def parts() -> AsyncGenerator[Buffer, None]:
    for start in range(0, len(WHOLE), 5 * MIB):
        yield bytearray(WHOLE[start : start + 5 * MIB])


def test_a_part_is_a_request_and_carries_what_it_was_given() -> None:
    async def case(world: S3World) -> None:
        await world.storage.upload("x", parts(), unique_id(1), METADATA)
        assert await world.storage.get_whole("x", len(WHOLE)) == (WHOLE, METADATA)
        statistics = world.storage.statistics()
        kinds: Sequence[Operation] = (
            "begin_upload",
            "put_part",
            "complete_upload",
            "put",
            "head",
            "get",
        )
        assert [statistics.requests(kind) for kind in kinds] == [1, 3, 1, 0, 0, 1]
        assert statistics.bytes_sent == len(WHOLE)
        assert world.unfinished() == 0

    run_case(case)


@pytest.mark.parametrize(
    ("operation", "faults"),
    [
        ("put_part", [cut]),
        ("put_part", [passes, reply_lost]),
        ("put_part", [passes, passes, says(500, "InternalError"), cut]),
        ("complete_upload", [reply_lost]),
        ("complete_upload", [cut, reply_lost]),
        ("complete_upload", [twice]),
        ("complete_upload", [says(200, "InternalError", after_effect=True)]),
    ],
)
def test_an_upload_survives_what_can_be_tried_again(operation: str, faults: list[Fault]) -> None:
    async def case(world: S3World) -> None:
        world.transport.fail(operation, *faults)  # type: ignore[arg-type]
        await world.storage.upload("x", parts(), unique_id(1), METADATA)
        assert world.raw() == {"x": WHOLE}
        assert world.unfinished() == 0

    run_case(case)


@pytest.mark.parametrize(
    ("operation", "faults", "error"),
    [
        ("begin_upload", [cut], StorageUnavailableError),
        ("begin_upload", [says(403, "AccessDenied")], StorageRefusedError),
        # Two parts are sent at once: one of them meets four.
        ("put_part", [cut] * 7, StorageUnavailableError),
        ("put_part", [passes, says(403, "AccessDenied")], StorageRefusedError),
        ("complete_upload", [cut] * 4, StorageUnavailableError),
        # Its parts are not held any more, so it cannot begin again.
        ("complete_upload", [says(409, "ConditionalRequestConflict")], StorageUnavailableError),
    ],
)
def test_an_upload_that_fails_leaves_nothing(
    operation: str, faults: list[Fault], error: type[Exception]
) -> None:
    async def case(world: S3World) -> None:
        world.transport.fail(operation, *faults)  # type: ignore[arg-type]
        with pytest.raises(error):
            await world.storage.upload("x", parts(), unique_id(1))
        assert world.raw() == {}
        assert world.unfinished() == 0
        await world.storage.upload("x", parts(), unique_id(2))
        assert world.raw() == {"x": WHOLE}

    run_case(case)


@pytest.mark.parametrize("conditional", ["required", "emulated"])
def test_a_name_that_is_taken_is_refused(conditional: str) -> None:
    async def case(world: S3World) -> None:
        await world.storage.put("x", [b"theirs"], unique_id(2))
        with pytest.raises(ObjectExistsError):
            await world.storage.upload("x", parts(), unique_id(1))
        assert world.raw() == {"x": b"theirs"}
        assert world.unfinished() == 0
        await world.storage.upload("y", parts(), unique_id(1))
        assert world.raw()["y"] == WHOLE

    run_case(case, conditional_writes=conditional)


def test_a_close_ends_an_upload_that_waits_for_its_source() -> None:
    async def case(world: S3World) -> None:
        reached, closed = asyncio.Event(), asyncio.Event()

        async def hanging() -> AsyncGenerator[Buffer, None]:
            try:
                yield bytes(5 * MIB)
                reached.set()
                await asyncio.Event().wait()
            finally:
                closed.set()

        upload = asyncio.create_task(world.storage.upload("x", hanging(), unique_id(1)))
        await reached.wait()
        upload.cancel()
        await asyncio.wait([upload])
        await world.storage.close()
        assert closed.is_set()
        assert world.raw() == {}
        assert world.unfinished() == 0

    run_case_with_threads(case)
