"""What every DurableDataLogFactory must do. Subclass once per implementation and give it a
`FactoryWorld`.
"""

from __future__ import annotations

import asyncio
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from durablelog.durable_data_log_factory import (
    DurableDataLogFactory,
    LogOptions,
    RemoteLog,
    StoreIdentity,
)
from durablelog.file.frame_reports import read_only_frames
from segmentstore.contracts.errors import ConfigError, ContainerOwnedError, NotAStoreError
from segmentstore.contracts.runtime import Runtime
from tests.contracts.durable_data_log_contract import read_payloads

OPTIONS = LogOptions(payload_bytes_max=400, file_bytes=64 * 1024)
HERE, ELSEWHERE = ("/stores/here", (1, 2)), ("/stores/elsewhere", (1, 3))
"""Two folders, by path, device and inode."""


class FactoryWorld(ABC):
    """What outlives the factories made in it: one place for the logs of one store."""

    @abstractmethod
    def make_factory(self) -> DurableDataLogFactory:
        """A factory of the place, not opened."""

    async def leave_orphan(self, store_id: str) -> int:
        """Leave something of container 0 that no log lists, of an epoch before the log's; how
        many there are now.
        """
        return 0


def drawn() -> StoreIdentity:
    return StoreIdentity(str(uuid.uuid4()), 2, "file:///tier2")


class DurableDataLogFactoryContract(ABC):
    world: FactoryWorld

    @abstractmethod
    def make_world(self, tmp_path: Path) -> FactoryWorld: ...

    @pytest.fixture(autouse=True)
    def _world(self, tmp_path: Path) -> None:
        self.world = self.make_world(tmp_path)

    @asynccontextmanager
    async def factory(self) -> AsyncIterator[DurableDataLogFactory]:
        factory = self.world.make_factory()
        await factory.open()
        try:
            yield factory
        finally:
            await factory.close()

    async def made(self, factory: DurableDataLogFactory) -> StoreIdentity:
        identity, made = await factory.make_or_join_store(drawn())
        assert made
        assert await factory.confirm_store(identity)
        return identity

    @staticmethod
    async def write(
        factory: DurableDataLogFactory,
        container_id: int,
        store_id: str,
        *payloads: bytes,
        options: LogOptions = OPTIONS,
    ) -> int:
        """Append to a container's log; the epoch."""
        log = factory.make_log(container_id, store_id, options)
        await log.open()
        try:
            for payload in payloads:
                await log.append([payload])
            return log.epoch
        finally:
            await log.close()

    @staticmethod
    def run(coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run(asyncio.wait_for(coroutine, 240))

    def test_a_new_place_is_empty_and_well(self) -> None:
        async def scenario() -> None:
            async with self.factory() as factory:
                assert not await factory.has_logs()
                assert await factory.read_identity() is None
                assert factory.health() == []
                found = await factory.find_orphans(str(uuid.uuid4()), [0, 1])
                assert (found.orphans, found.problems) == ((), ())

        self.run(scenario())

    def test_a_factory_that_was_never_opened_closes_and_closing_twice_is_quiet(self) -> None:
        async def scenario() -> None:
            await self.world.make_factory().close()
            async with self.factory() as factory:
                await factory.close()

        self.run(scenario())

    def test_logs_are_found_again_and_those_of_containers_are_apart(self) -> None:
        async def scenario() -> None:
            async with self.factory() as factory:
                store_id = (await self.made(factory)).store_id
                assert await self.write(factory, 0, store_id, b"a", b"b") == 1
                assert await self.write(factory, 1, store_id, b"c") == 1
                assert await factory.has_logs()
            async with self.factory() as factory:
                assert await factory.has_logs()
                for container_id, payloads in ((0, [b"a", b"b"]), (1, [b"c"])):
                    log = factory.make_log(container_id, store_id, OPTIONS)
                    await log.open()
                    assert log.epoch == 2
                    assert await read_payloads(log) == payloads
                    await log.close()

        self.run(scenario())

    def test_a_log_is_written_as_the_options_say(self) -> None:
        async def scenario() -> None:
            async with self.factory() as factory:
                store_id = (await self.made(factory)).store_id
                late = OPTIONS._replace(epoch_min=17)
                assert await self.write(factory, 0, store_id, options=late) == 17
                assert await self.write(factory, 0, store_id, options=late) == 18
                log = factory.make_log(1, store_id, OPTIONS)
                await log.open()
                assert log.payload_bytes_max == OPTIONS.payload_bytes_max
                with pytest.raises(ValueError, match="payload"):
                    await log.append([bytes(OPTIONS.payload_bytes_max + 1)])
                await log.close()

        self.run(scenario())

    def test_a_view_reads_the_log_and_leaves_it_to_its_owner(self) -> None:
        async def scenario() -> None:
            async with self.factory() as factory:
                store_id = (await self.made(factory)).store_id
                assert await self.write(factory, 0, store_id, b"a", b"b") == 1
            async with self.factory() as looking:
                if not looking.is_durable:
                    with pytest.raises(ConfigError):
                        looking.make_view(0, store_id)
                    return
                view = looking.make_view(0, store_id)
                await view.open()
                assert await read_payloads(view) == [b"a", b"b"]
                await view.close()
            async with self.factory() as factory:
                assert await self.write(factory, 0, store_id) == 2, "no epoch was taken"

        self.run(scenario())

    # --- the store's identity ---------------------------------------------------------------------

    def test_where_the_place_is_shared_all_agree_on_one_store(self) -> None:
        async def scenario() -> None:
            async with self.factory() as one, self.factory() as two:
                first, second = drawn(), drawn()
                assert await one.make_or_join_store(first) == (first, True)
                if not one.is_shared:
                    assert await one.read_identity() is None
                    assert await two.make_or_join_store(second) == (second, True)
                    return
                assert await two.make_or_join_store(second) == (first, False)
                assert await two.read_identity() == first

        self.run(scenario())

    def test_a_store_is_withdrawn_until_another_maker_confirmed_it(self) -> None:
        async def scenario() -> None:
            async with self.factory() as maker, self.factory() as other:
                identity, _ = await maker.make_or_join_store(drawn())
                assert await maker.withdraw_store(identity)
                assert await other.confirm_store(identity) is not other.is_shared
                again, made = await maker.make_or_join_store(drawn())
                assert made
                assert await other.confirm_store(again)
                assert await maker.withdraw_store(again) is not maker.is_shared

        self.run(scenario())

    def test_a_living_owner_is_asked_where_the_place_is_shared(self) -> None:
        async def scenario() -> None:
            async with self.factory() as owner, self.factory() as other:
                store_id = (await self.made(owner)).store_id
                await owner.check_owners([0, 1], *HERE, take_over=False)
                log = owner.make_log(0, store_id, OPTIONS)
                await log.open()
                await other.check_owners([1], *ELSEWHERE, take_over=False)
                if other.is_shared:
                    with pytest.raises(ContainerOwnedError):
                        await other.check_owners([0, 1], *ELSEWHERE, take_over=False)
                else:
                    await other.check_owners([0, 1], *ELSEWHERE, take_over=False)
                await other.check_owners([0, 1], *ELSEWHERE, take_over=True)
                await log.close()
                await other.check_owners([0, 1], *ELSEWHERE, take_over=False)

        self.run(scenario())

    # --- orphans ----------------------------------------------------------------------------------

    def test_orphans_are_found_and_deleted_and_nothing_else_is(self) -> None:
        async def scenario() -> None:
            async with self.factory() as factory:
                store_id = (await self.made(factory)).store_id
                for _ in range(2):
                    await self.write(factory, 0, store_id, b"kept")
                left = await self.world.leave_orphan(store_id)
                assert (await factory.find_orphans(store_id, [1])).orphans == ()
                found = await factory.find_orphans(store_id, [0, 1])
                assert len(found.orphans) == left
                done = await factory.delete_orphans(store_id, [0, 1])
                assert (done.deleted, done.kept, done.problems) == (found.orphans, (), ())
                assert (await factory.find_orphans(store_id, [0, 1])).orphans == ()
                log = factory.make_log(0, store_id, OPTIONS)
                await log.open()
                assert await read_payloads(log) == [b"kept", b"kept"]
                await log.close()

        self.run(scenario())

    # --- a store that is restored -----------------------------------------------------------------

    def test_a_restored_store_is_there_when_it_is_published(self) -> None:
        async def scenario() -> None:
            identity = drawn()
            async with self.factory() as factory, self.factory() as other:
                if not factory.is_durable:
                    with pytest.raises(ConfigError):
                        await factory.check_unused()
                    return
                await factory.check_unused()
                await factory.reserve_store(identity.store_id)
                for container_id in range(identity.containers):
                    payload = b"of container %d" % container_id
                    await self.write(factory, container_id, identity.store_id, payload)
                if factory.is_shared:
                    with pytest.raises(NotAStoreError):
                        await other.make_or_join_store(drawn())
                await factory.publish_store(identity)
                logs = await factory.stored_logs(identity.containers)
                assert set(logs) == set(range(identity.containers))
                for container_id, log in logs.items():
                    frames = (
                        log.frames()
                        if isinstance(log, RemoteLog)
                        else read_only_frames(log, Runtime().disk)
                    )
                    payloads = [bytes(frame.payload) for frame in frames if frame.status == "ok"]
                    assert payloads == [b"of container %d" % container_id]
                if other.is_shared:
                    assert await other.make_or_join_store(drawn()) == (identity, False)
                with pytest.raises((ConfigError, NotAStoreError)):
                    await other.check_unused()

        self.run(scenario())
