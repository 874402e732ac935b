"""What became of a put: lost replies, names suddenly taken, uploads suddenly missing, all on a real
server.
"""

from __future__ import annotations

import pytest

from recovery.harness.services.s3_servers import credentials
from segmentstore.contracts.byte_sizes import MIB
from tests.contracts.object_storage_contract import unique_id
from tests.tier2.s3_transport import (
    Fault,
    S3World,
    answers,
    cut,
    late,
    passes,
    reply_lost,
    run_case,
    says,
    twice,
)
from tier2.object_storage import (
    ObjectExistsError,
    ObjectRange,
    StorageRefusedError,
    StorageUnavailableError,
)

IN_PARTS = {"multipart_bytes": 6 * MIB, "part_bytes": 5 * MIB}
LARGE = [bytes([number]) * MIB for number in range(6)]


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in credentials().items():
        monkeypatch.setenv(key, value)


@pytest.mark.parametrize(
    "fault", [reply_lost, twice, says(500, "InternalError", after_effect=True)]
)
def test_a_put_that_took_effect_has_succeeded(fault: Fault) -> None:
    async def case(world: S3World) -> None:
        world.transport.fail("put", fault)
        await world.storage.put("x", [b"mine"], unique_id(1))
        assert world.raw() == {"x": b"mine"}

    run_case(case)


@pytest.mark.parametrize("status", [200, 202, 204])
@pytest.mark.parametrize("body", [b"", b"<html><body>Please log in</body></html>"])
def test_a_success_that_is_not_the_store_s_is_none(status: int, body: bytes) -> None:
    async def case(world: S3World) -> None:
        world.transport.fail("put", answers(status, body))
        with pytest.raises(StorageUnavailableError, match="no ETag") as caught:
            await world.storage.put("x", [b"mine"], unique_id(1))
        assert caught.value.kind == "odd-reply"
        await world.storage.put("x", [b"mine"], unique_id(1))
        # An upload in parts is completed once more.
        world.transport.fail("complete_upload", answers(status, body))
        await world.storage.put("y", LARGE, unique_id(2))
        assert world.raw() == {"x": b"mine", "y": b"".join(LARGE)}
        assert world.unfinished() == 0

    run_case(case, **IN_PARTS)


def test_a_put_that_did_not_take_effect_is_unavailable_and_may_be_tried_again() -> None:
    async def case(world: S3World) -> None:
        world.transport.fail("put", cut)
        with pytest.raises(StorageUnavailableError) as caught:
            await world.storage.put("x", [b"mine"], unique_id(1))
        assert caught.value.kind == "connection"
        await world.storage.put("x", [b"mine"], unique_id(1))
        assert world.raw() == {"x": b"mine"}

    run_case(case)


def test_a_put_that_takes_effect_late_is_ones_own() -> None:
    async def case(world: S3World) -> None:
        world.transport.fail("put", late)
        with pytest.raises(StorageUnavailableError):
            await world.storage.put("x", [b"mine"], unique_id(1))
        world.transport.release()
        await world.storage.put("x", [b"mine"], unique_id(1))
        # It landed between the check and the request itself.
        world.transport.fail("put", late)
        with pytest.raises(StorageUnavailableError):
            await world.storage.put("y", [b"mine"], unique_id(2))

        def between(transport: object, request: object) -> object:
            world.transport.release()
            return passes(world.transport, request)  # type: ignore[arg-type]

        world.transport.fail("put", between)  # type: ignore[arg-type]
        await world.storage.put("y", [b"mine"], unique_id(2))
        assert world.raw() == {"x": b"mine", "y": b"mine"}

    run_case(case)


def test_another_writers_object_is_never_taken_for_ones_own() -> None:
    async def case(world: S3World) -> None:
        await world.storage.put("x", [b"theirs"], unique_id(2))
        for fault in (passes, cut, reply_lost):
            world.transport.fail("put", fault)
            with pytest.raises(ObjectExistsError):
                await world.storage.put("x", [b"mine"], unique_id(1))
        assert world.raw() == {"x": b"theirs"}

    run_case(case)


def test_conflicts_are_tried_again_a_few_times() -> None:
    async def case(world: S3World) -> None:
        conflict = says(409, "ConditionalRequestConflict")
        world.transport.fail("put", *[conflict] * 4)
        await world.storage.put("x", [b"mine"], unique_id(1))
        assert world.storage.statistics().operations["put"].retries == 4
        assert world.storage.statistics().errors == 0
        world.transport.fail("put", *[conflict] * 5)
        with pytest.raises(StorageUnavailableError) as caught:
            await world.storage.put("y", [b"mine"], unique_id(1))
        assert caught.value.kind == "ConditionalRequestConflict"

    run_case(case)


def test_throttling_is_not_inspected_and_slows_every_request() -> None:
    async def case(world: S3World) -> None:
        world.transport.fail("put", says(503, "SlowDown"))
        with pytest.raises(StorageUnavailableError) as caught:
            await world.storage.put("x", [b"mine"], unique_id(1))
        assert caught.value.kind == "SlowDown"
        assert world.transport.sent["head"] == 0
        assert world.storage._requests.rate_gate.rate.throttled_count == 1

    run_case(case)


def test_a_body_that_the_server_kept_in_part_is_replaced() -> None:
    async def case(world: S3World) -> None:
        world.plain.put_object(
            Bucket=world.bucket,
            Key="some/prefix/x",
            Body=b"mi",
            Metadata={"unique-id": unique_id(1).hex()},
        )
        with pytest.raises(StorageUnavailableError) as caught:
            await world.storage.put("x", [b"mine"], unique_id(1))
        assert caught.value.kind == "truncated"
        await world.storage.put("x", [b"mine"], unique_id(1))
        assert world.raw() == {"x": b"mine"}

    run_case(case)


@pytest.mark.parametrize(
    "faults",
    [
        [reply_lost],
        [twice],
        [cut],
        [cut, reply_lost],
        [says(500, "InternalError", after_effect=True)],
        [says(500, "InternalError")],
        [says(503, "SlowDown"), says(503, "SlowDown")],
        [says(409, "ConditionalRequestConflict")],
        [says(409, "ConditionalRequestConflict"), reply_lost],
    ],
)
def test_a_completion_is_brought_to_its_end(faults: list[Fault]) -> None:
    async def case(world: S3World) -> None:
        world.transport.fail("complete_upload", *faults)
        await world.storage.put("x", LARGE, unique_id(1))
        assert world.raw() == {"x": b"".join(LARGE)}
        assert world.unfinished() == 0

    run_case(case, **IN_PARTS)


def test_a_completion_that_comes_late_is_ones_own() -> None:
    async def case(world: S3World) -> None:
        def released(transport: object, request: object) -> object:
            world.transport.release()
            return passes(world.transport, request)  # type: ignore[arg-type]

        world.transport.fail("complete_upload", late, released)  # type: ignore[arg-type]
        await world.storage.put("x", LARGE, unique_id(1))
        assert world.raw() == {"x": b"".join(LARGE)}
        assert world.unfinished() == 0

    run_case(case, **IN_PARTS)


def test_a_completion_after_which_the_upload_is_missing_is_checked() -> None:
    async def case(world: S3World) -> None:
        world.transport.fail("complete_upload", reply_lost, says(404, "NoSuchUpload"))
        # The check behind the lost reply fails as well, so Complete is sent again.
        world.transport.fail("head", cut)
        await world.storage.put("x", LARGE, unique_id(1))
        assert world.raw() == {"x": b"".join(LARGE)}
        world.transport.fail("complete_upload", says(404, "NoSuchUpload"))
        with pytest.raises(StorageUnavailableError) as caught:
            await world.storage.put("y", LARGE, unique_id(2))
        assert caught.value.kind == "NoSuchUpload"
        assert world.unfinished() == 0

    run_case(case, **IN_PARTS)


def test_an_upload_over_another_writers_object_is_refused_and_aborted() -> None:
    async def case(world: S3World) -> None:
        await world.storage.put("x", [b"theirs"], unique_id(2))
        with pytest.raises(ObjectExistsError):
            await world.storage.put("x", LARGE, unique_id(1))
        assert world.raw() == {"x": b"theirs"}
        assert world.unfinished() == 0

    run_case(case, **IN_PARTS)


def test_parts_are_tried_again_by_themselves() -> None:
    async def case(world: S3World) -> None:
        world.transport.fail(
            "put_part", cut, reply_lost, says(400, "BadDigest"), says(503, "SlowDown"), twice
        )
        await world.storage.put("x", LARGE, unique_id(1))
        assert world.raw() == {"x": b"".join(LARGE)}
        statistics = world.storage.statistics().operations
        assert statistics["put_part"].retries == 4
        assert statistics["begin_upload"].requests == 1

    run_case(case, **IN_PARTS)


def test_an_upload_whose_part_never_gets_through_is_aborted() -> None:
    async def case(world: S3World) -> None:
        for fault, requests in ((cut, 8), (says(403, "AccessDenied"), 2)):
            before = world.transport.sent["put_part"]
            world.transport.fail("put_part", *[fault] * 12)
            with pytest.raises(StorageUnavailableError):
                await world.storage.put("x", LARGE, unique_id(1))
            world.transport._faults.clear()
            assert world.transport.sent["put_part"] - before <= requests
            assert world.raw() == {}
            assert world.unfinished() == 0

    run_case(case, **IN_PARTS)


def test_an_abort_that_fails_leaves_what_a_listing_finds() -> None:
    async def case(world: S3World) -> None:
        world.transport.fail("put_part", *[says(403, "AccessDenied")] * 2)
        world.transport.fail("abort_upload", cut, cut)
        with pytest.raises(StorageRefusedError):
            await world.storage.put("x", LARGE, unique_id(1))
        world.transport._faults.clear()
        (upload,) = await world.storage.list_unfinished()
        await world.storage.abort_unfinished(upload)
        assert world.unfinished() == 0

    run_case(case, **IN_PARTS)


def test_a_copy_is_settled_like_a_put() -> None:
    async def case(world: S3World) -> None:
        await world.storage.put("source", LARGE, unique_id(1))
        ranges = [ObjectRange("source", 1, 5 * MIB + 1), ObjectRange("source", 0, 7)]
        expected = b"".join(LARGE)[1 : 2 + 5 * MIB] + bytes(7)
        world.transport.fail("copy_part", reply_lost, cut)
        world.transport.fail("get", cut)
        world.transport.fail("complete_upload", reply_lost)
        await world.storage.compose("made", ranges, unique_id(2))
        assert world.raw()["made"] == expected
        assert world.unfinished() == 0

    run_case(case)


def test_with_emulated_conditions_an_object_that_is_there_is_seen_first() -> None:
    async def case(world: S3World) -> None:
        storage = world.storage
        for name, parts in (("x", [b"mine"]), ("y", LARGE)):
            await storage.put(name, parts, unique_id(1))
            await storage.put(name, parts, unique_id(1))
            with pytest.raises(ObjectExistsError):
                await storage.put(name, [b"theirs"], unique_id(2))
        assert world.raw() == {"x": b"mine", "y": b"".join(LARGE)}
        assert storage.statistics().requests("put", "complete_upload") == 2

    run_case(case, conditional_writes="emulated", **IN_PARTS)
