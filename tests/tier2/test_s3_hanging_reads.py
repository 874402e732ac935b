"""Reads from a real server some of whose connections are accepted and never answered: which
connection answered, and what it cost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace

import pytest

from recovery.harness.services.fault_rules import SLOW_DOWN, Stall, Status
from recovery.harness.services.s3_servers import Moto
from recovery.harness.services.shared import shared_server
from segmentstore.contracts.runtime import Runtime
from tests.store.harness import until
from tests.support.faulty_s3 import WHOLE, FaultyS3, faulty_s3, own_part, unique_id
from tests.support.trickling import LISTING_HEADS, Trickling
from tier2.object_storage import ObjectNotFoundError, StorageUnavailableError
from tier2.request_statistics import OperationStatistics
from tier2.s3 import hedged_reads, read_timeouts, s3_client, s3_requests
from tier2.s3.read_timeouts import READ_TIMEOUTS_S, SAMPLES_MIN, SAVED_MAX, ReadTimeouts
from tier2.s3.s3_location import parse_s3_url
from tier2.s3.s3_object_storage import S3ObjectStorage

_BOUND_S = 240.0


@pytest.fixture(scope="module")
def service() -> Iterator[FaultyS3]:
    with faulty_s3(shared_server(Moto)) as world:
        yield world


@pytest.fixture
def s3(service: FaultyS3) -> Iterator[FaultyS3]:
    with own_part(service) as world:
        yield world


def run(
    s3: FaultyS3,
    case: Callable[[S3ObjectStorage], Awaitable[None]],
    *,
    connections: int = 16,
    measured: bool = True,
) -> None:
    """The case with a storage that has an object, and has measured what reading it takes."""

    async def body() -> None:
        storage = S3ObjectStorage(replace(parse_s3_url(s3.url), connections=connections), Runtime())
        try:
            async with asyncio.timeout(_BOUND_S):
                await storage.put("name", [WHOLE], unique_id(1))
                for _ in range(SAMPLES_MIN if measured else 0):
                    await storage.get_range("name", 0, 100)
                await case(storage)
        finally:
            s3.proxy.heal()
            await storage.close()

    asyncio.run(body())


def gets(storage: S3ObjectStorage) -> OperationStatistics:
    return storage.statistics().operations["get"]


async def read(storage: S3ObjectStorage, name: str = "name") -> bytes:
    return await storage.get_range(name, 500, 100)


def test_a_second_request_has_the_answer_where_the_first_gets_none(s3: FaultyS3) -> None:
    async def case(storage: S3ObjectStorage) -> None:
        # On a busy machine the second request may come first, and meet the stall.
        while not (now := gets(storage)).hedges_won:
            stall = s3.proxy.fault(Stall(), "get")
            assert await read(storage) == WHOLE[500:600]
            assert stall.taken == 1
        assert 1 <= now.in_flight <= now.hedges
        assert dict(now.errors) == {}

    run(s3, case)


def test_that_there_is_no_object_is_an_answer_of_the_second_too(s3: FaultyS3) -> None:
    async def case(storage: S3ObjectStorage) -> None:
        # On a busy machine the second request may come first, and meet the stall.
        while not gets(storage).hedges_won:
            s3.proxy.fault(Stall(), "get")
            with pytest.raises(ObjectNotFoundError):
                await read(storage, "absent")

    run(s3, case)


def test_a_second_request_that_fails_is_no_answer(s3: FaultyS3) -> None:
    async def fails_beside_a_stall(storage: S3ObjectStorage) -> bool:
        """Whether it was the second request that failed."""
        before = gets(storage)
        s3.proxy.fault(Stall(), "get")
        failing = s3.proxy.fault(Status(500, "InternalError"), "get")
        reading = asyncio.ensure_future(read(storage))
        await until(lambda: sum(gets(storage).errors.values()) > sum(before.errors.values()))
        assert not reading.done()
        s3.proxy.release()
        assert await reading == WHOLE[500:600]
        now = gets(storage)
        assert (failing.taken, now.hedges - before.hedges) == (1, 1)
        return now.hedges_won == before.hedges_won

    async def case(storage: S3ObjectStorage) -> None:
        # On a busy machine the second request may come first, and meet the stall.
        while not await fails_beside_a_stall(storage):
            pass

    run(s3, case)


def test_connections_that_hang_leave_all_others_to_the_reads_behind_them(
    s3: FaultyS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one connection, and one beside it: what hangs has the place of the second request, not
    of the first, until its connection is dead.
    """

    async def case(storage: S3ObjectStorage) -> None:
        s3.proxy.fault(Stall(), "get")
        assert await read(storage) == WHOLE[500:600]
        for _ in range(5):
            assert await read(storage) == WHOLE[500:600]
        now = gets(storage)
        assert (now.hedges, now.in_flight) == (1, 1)
        # The place beside is taken: the next one that hangs is waited for.
        s3.proxy.fault(Stall(), "get")
        reading = asyncio.ensure_future(read(storage))
        await until(lambda: len(s3.proxy.seen("get")) >= SAMPLES_MIN + 8)
        assert gets(storage).hedges == 1
        # From here on the place is free, and on a busy machine a second request may be sent.
        s3.proxy.release()
        assert await reading == WHOLE[500:600]

    s3.proxy._seen.clear()
    # On a busy machine all of it may take longer than the 5 s that it is otherwise.
    monkeypatch.setattr(ReadTimeouts, "dead_after_s", lambda *_: READ_TIMEOUTS_S[-1])
    run(s3, case, connections=1)


def test_a_provider_that_hangs_as_a_whole_gets_few_second_requests_and_readers_an_error(
    s3: FaultyS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def case(storage: S3ObjectStorage) -> None:
        s3.proxy.fault(Stall(), "get", times=None)
        with monkeypatch.context() as impatient:
            # Of no read that is answered: a busy machine needs longer for one.
            impatient.setattr(ReadTimeouts, "dead_after_s", lambda *_: 1)
            reads = (read(storage) for _ in range(30))
            found = await asyncio.gather(*reads, return_exceptions=True)
        assert {type(each).__name__ for each in found} == {"S3UnavailableError"}
        assert all(
            isinstance(each, StorageUnavailableError) and each.kind == "timeout" for each in found
        )
        now = gets(storage)
        assert now.hedges <= SAVED_MAX
        assert now.hedges_won == 0
        # All of them were given up: nothing hangs on.
        assert now.in_flight == 0
        s3.proxy.heal()
        assert await read(storage) == WHOLE[500:600]

    run(s3, case, connections=32)


def test_an_object_that_is_given_up_while_another_is_read_is_waited_for_longer(
    s3: FaultyS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def case(storage: S3ObjectStorage) -> None:
        read_timeouts = storage._requests.read_timeouts
        await storage.put("slow", [WHOLE], unique_id(2))
        for _ in range(2):
            s3.proxy.fault(Stall(), "get")
            with pytest.raises(StorageUnavailableError):
                await read(storage, "slow")
            assert await read(storage) == WHOLE[500:600]
        assert (read_timeouts.dead_after_s("slow"), read_timeouts.dead_after_s("name")) == (8, 4)
        assert await read(storage, "slow") == WHOLE[500:600]

    monkeypatch.setattr(read_timeouts, "READ_TIMEOUTS_S", (4, 8, 12))
    monkeypatch.setattr(read_timeouts, "DEAD_FACTOR", 0.0)
    monkeypatch.setattr(ReadTimeouts, "may_repeat", lambda _: False)
    run(s3, case)


async def storage_on(server: Trickling, s3: FaultyS3) -> S3ObjectStorage:
    location = replace(parse_s3_url(s3.url), endpoint_url=await server.start())
    return S3ObjectStorage(location, Runtime())


def test_a_reply_that_trickles_is_cut(s3: FaultyS3, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        server = Trickling()
        storage = await storage_on(server, s3)
        async with asyncio.timeout(_BOUND_S):
            with pytest.raises(StorageUnavailableError):
                await storage.get_range("name", 0, 100_000)
        await storage.close()
        await server.close()

    monkeypatch.setattr(hedged_reads, "WHOLE_S", 0.2)
    monkeypatch.setattr(hedged_reads, "SLOWEST_BYTES_PER_S", 1 << 40)
    asyncio.run(body())


@pytest.mark.parametrize("head", LISTING_HEADS.values(), ids=LISTING_HEADS)
def test_a_listing_that_trickles_is_ended(
    s3: FaultyS3, monkeypatch: pytest.MonkeyPatch, head: bytes
) -> None:
    async def body() -> None:
        server = Trickling(head, 500)
        storage = await storage_on(server, s3)
        async with asyncio.timeout(_BOUND_S):
            with pytest.raises(StorageUnavailableError) as caught:
                await anext(storage.list())
            assert caught.value.kind == "timeout"
            with pytest.raises(StorageUnavailableError) as caught:
                await storage.list_unfinished()
            assert caught.value.kind == "timeout"
        await storage.close()
        await server.close()

    monkeypatch.setattr(s3_client, "PAGE_S", 0.2)
    asyncio.run(body())


@pytest.mark.parametrize("closes_first", [False, True])
def test_a_close_does_not_wait_for_an_abandoned_reply_that_trickles(
    s3: FaultyS3, monkeypatch: pytest.MonkeyPatch, *, closes_first: bool
) -> None:
    async def body() -> None:
        server = Trickling()
        storage = await storage_on(server, s3)
        reading = asyncio.ensure_future(storage.get_range("name", 0, 100_000))
        replies = storage._requests._running.values()
        if closes_first:
            await until(lambda: bool(replies))
        else:
            await until(lambda: any(reply.begun for reply in replies))
        reading.cancel()
        async with asyncio.timeout(_BOUND_S):
            await storage.close()
        await server.close()

    monkeypatch.setattr(s3_requests, "CUT_AGAIN_S", 0.05)
    asyncio.run(body())


def test_a_provider_that_throttles_is_sent_nothing_twice(s3: FaultyS3) -> None:
    async def case(storage: S3ObjectStorage) -> None:
        # A busy machine may send one twice before it is throttled.
        s3.proxy.fault(SLOW_DOWN, "get", times=None)
        with pytest.raises(StorageUnavailableError):
            await read(storage)
        s3.proxy.heal()
        before = gets(storage).hedges
        stall = s3.proxy.fault(Stall(), "get")
        reading = asyncio.ensure_future(read(storage))
        await until(lambda: stall.taken == 1)
        late_after_s = storage._requests.read_timeouts.late_after_s(100)
        assert late_after_s is not None
        await asyncio.wait((reading,), timeout=2 * late_after_s)
        assert gets(storage).hedges == before
        s3.proxy.release()
        assert await reading == WHOLE[500:600]

    run(s3, case)


def test_without_a_measure_nothing_is_sent_twice(s3: FaultyS3) -> None:
    async def case(storage: S3ObjectStorage) -> None:
        stall = s3.proxy.fault(Stall(), "get")
        reading = asyncio.ensure_future(read(storage))
        await until(lambda: stall.taken == 1)
        s3.proxy.release()
        assert await reading == WHOLE[500:600]
        assert gets(storage).hedges == 0

    run(s3, case, measured=False)
