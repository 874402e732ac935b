"""Transactions and their leases, in virtual time."""

from __future__ import annotations

import asyncio

from recovery.harness.simulation.virtual_loop import run_virtual
from segmentstore.controller.message_forms import transaction_id, transaction_of
from segmentstore.controller.names import segment_name, transaction_segment_name
from segmentstore.controller.refusals import Reason
from segmentstore.controller.transaction_model import (
    PingOutcome,
    TransactionState,
    make_transaction_id,
)
from tests.controller.controller_world import (
    LEASE_MS,
    STREAM,
    TWO,
    refused,
    running,
    with_stream,
)
from tests.controller.fake_store import FakeDisk, FakeProcess
from tests.support.loop_clock import LoopClock

LEASE_S = LEASE_MS / 1000


def parts(transaction_id: int) -> list[str]:
    return [transaction_segment_name(segment_name(STREAM, each), transaction_id) for each in (0, 1)]


def test_transactions_are_merged_in_the_order_of_their_commits() -> None:
    async def main() -> None:
        async with with_stream(TWO) as (controller, disk):
            ids = []
            for number in range(5):
                identity, segments = await controller.create_transaction(STREAM, LEASE_MS)
                assert [each.segment_id for each in segments] == [0, 1]
                ids.append(identity)
                disk.write(parts(identity)[0], b"%d" % number)
            for number in (3, 0, 4):
                await controller.transactions.commit(STREAM, ids[number])
            await controller.transactions.abort(STREAM, ids[1])
            await asyncio.sleep(1)
            assert disk.segments["s/a/0.#epoch.0"].data == b"304"
            assert disk.segments["s/a/1.#epoch.0"].data == b""
            assert parts(ids[1])[0] not in disk.segments
            assert parts(ids[2])[0] in disk.segments
            ended = dict(await controller.transactions.completed(STREAM))
            assert ended[ids[1]] is TransactionState.ABORTED
            assert {ids[3], ids[0], ids[4]} == {
                each for each, state in ended.items() if state is TransactionState.COMMITTED
            }

    run_virtual(main())


def test_a_lease_begins_with_the_answer() -> None:
    """Though a container moves meanwhile, for longer than the lease."""

    async def main() -> None:
        process = FakeProcess(FakeDisk())
        async with running(process) as controller:
            await controller.scopes.create(STREAM.scope)
            await controller.streams.create(STREAM, TWO)
            process.creation_s = LEASE_S + 1
            identity, _ = await controller.create_transaction(STREAM, LEASE_MS)
            await asyncio.sleep(LEASE_S - 1)
            await controller.transactions.commit(STREAM, identity)
            await asyncio.sleep(1)
            state = await controller.transactions.state(STREAM, identity)
            assert state is TransactionState.COMMITTED

    run_virtual(main())


def test_a_wall_clock_that_is_ahead_ends_no_transaction() -> None:
    async def main() -> None:
        clock = LoopClock()
        process = FakeProcess(FakeDisk())
        async with running(process, clock=clock) as controller:
            await controller.scopes.create(STREAM.scope)
            await controller.streams.create(STREAM, TWO)
            identity, _ = await controller.create_transaction(STREAM, LEASE_MS)
        clock.offset_ms += 30 * 24 * 3600 * 1000
        async with running(FakeProcess(process.disk), clock=clock) as controller:
            for _ in range(3):
                await asyncio.sleep(LEASE_S - 1)
                outcome = await controller.transactions.ping(STREAM, identity, LEASE_MS)
                assert outcome is PingOutcome.OK

    run_virtual(main())


def test_an_id_has_the_epoch_and_a_lower_half_that_is_not_negative() -> None:
    identity = make_transaction_id(7, 2**96 - 1)
    assert transaction_id(identity).high == 7 << 32 | 2**32 - 1
    assert transaction_id(identity).low == 2**63 - 1
    assert transaction_of(transaction_id(identity)) == identity


def test_a_transaction_ends_with_its_lease() -> None:
    async def main() -> None:
        async with with_stream(TWO) as (controller, disk):
            transactions = controller.transactions
            identity, _ = await controller.create_transaction(STREAM, LEASE_MS)
            for _ in range(5):
                await asyncio.sleep(LEASE_S - 1)
                assert await transactions.ping(STREAM, identity, LEASE_MS) is PingOutcome.OK
            await asyncio.sleep(LEASE_S - 1)
            assert await transactions.state(STREAM, identity) is TransactionState.OPEN
            await asyncio.sleep(2)
            assert await transactions.state(STREAM, identity) is TransactionState.ABORTED
            assert parts(identity)[0] not in disk.segments
            async with refused(Reason.TRANSACTION_ENDED):
                await transactions.commit(STREAM, identity)

    run_virtual(main())


def test_a_transaction_is_not_extended_beyond_its_longest_time() -> None:
    async def main() -> None:
        async with with_stream() as (controller, _):
            identity, _ = await controller.create_transaction(STREAM, LEASE_MS)
            ping = controller.transactions.ping
            outcomes = []
            for _ in range(17):
                outcomes.append(await ping(STREAM, identity, 600_000))
                await asyncio.sleep(599)
            assert outcomes == [*[PingOutcome.OK] * 16, PingOutcome.TOO_OLD]

    run_virtual(main())


def test_how_a_transaction_ended_is_forgotten_after_a_day() -> None:
    async def main() -> None:
        async with with_stream() as (controller, disk):
            identity, _ = await controller.create_transaction(STREAM, LEASE_MS)
            await controller.transactions.commit(STREAM, identity)
            await asyncio.sleep(23 * 3600)
            state = await controller.transactions.state(STREAM, identity)
            assert state is TransactionState.COMMITTED
            await asyncio.sleep(2.1 * 3600)
            assert await controller.transactions.state(STREAM, identity) is None
            assert not [key for key in disk.rows if key.startswith(b"ended/")]

    run_virtual(main())


def test_open_transactions_keep_a_stream_from_scaling() -> None:
    async def main() -> None:
        async with with_stream() as (controller, _):
            await controller.create_transaction(STREAM, LEASE_MS)
            async with refused(Reason.PRECONDITION_FAILED):
                await controller.streams.scale(STREAM, [0], [(0.0, 1.0)])
            await asyncio.sleep(LEASE_S + 1)
            await controller.streams.scale(STREAM, [0], [(0.0, 1.0)])
            identity, segments = await controller.create_transaction(STREAM, LEASE_MS)
            assert identity >> 96 == 1
            assert [each.epoch for each in segments] == [1]

    run_virtual(main())


def test_sealing_aborts_open_transactions_and_lets_commits_end() -> None:
    async def main() -> None:
        async with with_stream(TWO) as (controller, disk):
            committed, _ = await controller.create_transaction(STREAM, LEASE_MS)
            opened, _ = await controller.create_transaction(STREAM, LEASE_MS)
            disk.write(parts(committed)[0], b"in")
            disk.write(parts(opened)[0], b"out")
            await controller.transactions.commit(STREAM, committed)
            await controller.streams.seal(STREAM)
            assert disk.segments["s/a/0.#epoch.0"].data == b"in"
            states = [
                await controller.transactions.state(STREAM, each) for each in (committed, opened)
            ]
            assert states == [TransactionState.COMMITTED, TransactionState.ABORTED]
            async with refused(Reason.STREAM_SEALED):
                await controller.create_transaction(STREAM, LEASE_MS)

    run_virtual(main())


def test_commits_that_wait_keep_their_order_across_a_restart() -> None:
    async def main() -> None:
        async with with_stream() as (controller, disk):
            ids = sorted(
                [(await controller.create_transaction(STREAM, LEASE_MS))[0] for _ in "abc"]
            )
        process = FakeProcess(disk)
        process.merges_fail = True
        async with running(process) as controller:
            for number, identity in enumerate(ids):
                disk.write(parts(identity)[0], b"%d" % number)
            await controller.transactions.commit(STREAM, ids[2])
            await controller.transactions.commit(STREAM, ids[1])
        process = FakeProcess(disk)
        process.merges_fail = True
        async with running(process) as controller:
            await controller.transactions.commit(STREAM, ids[0])
            await asyncio.sleep(60)
            state = await controller.transactions.state(STREAM, ids[0])
            assert state is TransactionState.COMMITTING
            process.merges_fail = False
            await asyncio.sleep(60)
            assert disk.segments["s/a/0.#epoch.0"].data == b"210"

    run_virtual(main())


def test_a_restart_gives_open_transactions_their_lease_anew() -> None:
    async def main() -> None:
        async with with_stream() as (controller, disk):
            identity, _ = await controller.create_transaction(STREAM, LEASE_MS)
            await asyncio.sleep(LEASE_S - 1)
        await asyncio.sleep(100)
        async with running(FakeProcess(disk)) as controller:
            await asyncio.sleep(LEASE_S - 1)
            assert await controller.transactions.state(STREAM, identity) is TransactionState.OPEN
            await asyncio.sleep(2)
            state = await controller.transactions.state(STREAM, identity)
            assert state is TransactionState.ABORTED

    run_virtual(main())
