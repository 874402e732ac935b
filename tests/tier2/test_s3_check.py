"""The check at the beginning: what a good store passes, and the one sentence about each that is
not.
"""

from __future__ import annotations

from typing import Any

import pytest

from recovery.harness.services.s3_servers import credentials
from tests.tier2.s3_transport import (
    Fault,
    FaultyTransport,
    S3World,
    answers,
    cut,
    passes,
    run_case,
    says,
)
from tier2.object_storage import StorageRefusedError, StorageUnavailableError
from tier2.request_statistics import Operation


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in credentials().items():
        monkeypatch.setenv(key, value)


def unconditional(transport: FaultyTransport, request: Any) -> Any:
    """A server that has never received If-None-Match."""
    del request.headers["If-None-Match"]
    return transport.forward(request)


def test_a_good_store_passes_and_nothing_is_left() -> None:
    async def case(world: S3World) -> None:
        await world.storage.check()
        assert world.raw() == {}
        assert world.unfinished() == 0
        assert world.storage.statistics().requests() <= 15

    run_case(case)


@pytest.mark.parametrize(
    ("operation", "faults", "said"),
    [
        (
            "put",
            [says(403, "AccessDenied")],
            "PutObject is refused with AccessDenied (it is said): give the credentials the",
        ),
        ("put", [says(403, "RequestTimeTooSkewed")], "this machine's clock is off"),
        ("put", [says(400, "ExpiredToken")], "the session token has expired"),
        ("put", [says(400, "InvalidRequest")], "PutObject is not taken (InvalidRequest)"),
        (
            "put",
            [passes, unconditional],
            "PutObject overwrites an object in spite of If-None-Match: use another store, or",
        ),
        (
            "put",
            [passes, says(400, "Strange")],
            "PutObject answers If-None-Match with Strange: use another store, or cond",
        ),
        ("put", [passes, says(501, "NotImplemented")], "PutObject is refused with NotImplemented"),
        (
            "get",
            [answers(206, b"x" * 20, Content_Range="bytes 5-24/73")],
            "GetObject gives other bytes than were put",
        ),
        ("get", [says(403, "AccessDenied")], "GetObject is refused with AccessDenied"),
        ("head", [says(403, "")], "does not show what was just put"),
        ("list", [says(403, "AccessDenied")], "permission for ListObjectsV2 on the bucket"),
        (
            "list",
            [answers(200, b"<ListBucketResult><KeyCount>0</KeyCount></ListBucketResult>")],
            "ListObjectsV2 does not show",
        ),
        (
            "list_uploads",
            [says(403, "AccessDenied")],
            "permission for ListMultipartUploads on the bucket",
        ),
        (
            "begin_upload",
            [says(403, "AccessDenied")],
            "permission for CreateMultipartUpload on the bucket",
        ),
        ("put_part", [says(403, "AccessDenied")], "permission for UploadPart on the bucket"),
        (
            "complete_upload",
            [unconditional],
            "CompleteMultipartUpload overwrites an object in spite of If-None-Match",
        ),
        (
            "abort_upload",
            [says(403, "AccessDenied")],
            "permission for AbortMultipartUpload on the bucket",
        ),
        ("delete", [says(403, "AccessDenied")], "permission for DeleteObject on the bucket"),
        ("delete", [answers(204, b"")], "DeleteObject says done and the object is still there"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(
    operation: Operation, faults: list[Fault], said: str
) -> None:
    async def case(world: S3World) -> None:
        world.transport.fail(operation, *faults)
        if operation == "head":
            world.transport.fail("get", passes, says(404, "NoSuchKey"))
        with pytest.raises(StorageRefusedError) as caught:
            await world.storage.check()
        assert said in str(caught.value)
        assert "\n" not in str(caught.value)

    run_case(case)


def test_a_store_that_does_not_answer_is_not_refused() -> None:
    async def case(world: S3World) -> None:
        for operation in ("put", "get", "list", "put_part", "delete"):
            world.transport.fail(operation, cut)
            with pytest.raises(StorageUnavailableError) as caught:
                await world.storage.check()
            assert not isinstance(caught.value, StorageRefusedError)
        assert world.unfinished() == 0

    run_case(case)


def test_a_store_that_loses_metadata_is_refused() -> None:
    def forgetful(transport: FaultyTransport, request: Any) -> Any:
        response = transport.forward(request)
        del response.headers["x-amz-meta-unique-id"]
        return response

    async def case(world: S3World) -> None:
        world.transport.fail("head", forgetful)
        with pytest.raises(StorageRefusedError) as caught:
            await world.storage.check()
        assert "HeadObject does not give back the metadata that was put" in str(caught.value)
        assert world.raw() == {}

    run_case(case)


def test_emulated_conditions_are_not_asked_for() -> None:
    async def case(world: S3World) -> None:
        def no_condition(transport: FaultyTransport, request: Any) -> Any:
            assert "If-None-Match" not in request.headers
            return transport.forward(request)

        world.transport.fail("put", *[no_condition] * 3)
        await world.storage.check()
        assert world.transport.sent["put"] == 1
        assert world.raw() == {}

    run_case(case, conditional_writes="emulated")
