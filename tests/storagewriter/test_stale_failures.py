"""What `health` says of a Tier 2 that failed and answers again: nothing, though what failed was not
tried again yet.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from recovery.harness.services.fault_rules import (
    EXPIRED_TOKEN,
    INTERNAL_ERROR,
    SLOW_DOWN,
    DropRequest,
    Fault,
)
from recovery.harness.services.s3_servers import Moto
from recovery.harness.services.shared import shared_server
from segmentstore.contracts.health import HealthNote
from segmentstore.contracts.runtime import SystemClock
from segmentstore.tier2_start import Tier2Start
from tests.store.harness import until
from tests.support.faulty_s3 import FaultyS3, faulty_s3, own_part, run, unique_id
from tier2.object_storage import StorageUnavailableError
from tier2.s3.s3_object_storage import S3ObjectStorage
from tier2.store_markers import StoreMarkers


@pytest.fixture(scope="module")
def service() -> Iterator[FaultyS3]:
    with faulty_s3(shared_server(Moto)) as world:
        yield world


@pytest.fixture
def s3(service: FaultyS3) -> Iterator[FaultyS3]:
    with own_part(service) as world:
        yield world


@pytest.mark.parametrize(
    ("fault", "goes"),
    [(DropRequest(), True), (SLOW_DOWN, True), (INTERNAL_ERROR, False), (EXPIRED_TOKEN, False)],
    ids=["connection", "throttled", "of this object, perhaps", "refused"],
)
def test_a_failure_of_the_whole_provider_is_over_when_another_request_was_answered(
    s3: FaultyS3, fault: Fault, *, goes: bool
) -> None:
    async def case(storage: S3ObjectStorage) -> None:
        health = HealthNote("tier2", SystemClock())
        await storage.put("there", [b"1"], unique_id(1))
        rule = s3.proxy.fault(fault, "put", "head", "get", times=None)
        with pytest.raises(StorageUnavailableError) as caught:
            await storage.put("x", [b"1"], unique_id(2))
        assert rule.taken
        s3.proxy.heal()
        health.failed(caught.value)
        # Reading may work where nothing can be written.
        await storage.get_range("there", 0, 1)
        assert health.describe() is not None
        await storage.put("y", [b"1"], unique_id(3))
        assert (health.describe() is None) is goes
        health.failed(caught.value)
        health.succeeded()
        assert health.describe() is None

    run(s3, case)


def test_a_check_at_the_start_that_got_no_answer_is_forgotten_when_others_get_one(
    s3: FaultyS3,
) -> None:
    async def case(storage: S3ObjectStorage) -> None:
        start = Tier2Start(storage, StoreMarkers(storage, "0b4f6c1e-6f0a-4c8e-9d7b-2f5f4f9f6d10"))
        s3.proxy.refuse()
        start.begin()
        await until(lambda: bool(start.health()))
        s3.proxy.accept()
        # The check rests now: it is tried again later.
        await start.stop()
        assert start.health()
        await storage.put("x", [b"1"], unique_id(1))
        # What failed was a listing: an answered read outlives it.
        await storage.get_range("x", 0, 1)
        assert not start.health()

    run(s3, case)
