"""Presence of owners: which one is followed at once, which one is waited for, which one is never
followed.

Virtual time.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durablelog.bookkeeper.log_metadata import LogMetadata
from durablelog.bookkeeper.log_owner import (
    LogOwner,
    OwnerNode,
    decode_owner_node,
    encode_owner_node,
    owner_path,
)
from durablelog.bookkeeper.memory_nodes import MemoryNodes, NodeTree
from durablelog.bookkeeper.memory_process import MemoryProcess
from durablelog.bookkeeper.memory_sessions import SESSION_S
from durablelog.bookkeeper.owner_presence import EXTRA_S, SESSIONS_WAITED, OwnerPresence
from recovery.harness.simulation.virtual_loop import run_virtual
from segmentstore.contracts.errors import ContainerOwnedError, StoreInUseError
from segmentstore.contracts.processes import ProcessIdentity
from segmentstore.contracts.runtime import Runtime
from tests.support.loop_clock import LoopClock

OWNERS = "/store/owners"
LOCATION = "bookkeeper://zoo:2181/store"


class Machine:
    """Its processes by number; `place` says which machine it is."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.running = {1: "a", 2: "b"}

    def processes(self, pid: int) -> _Seen:
        return _Seen(self, pid)


class _Seen:
    def __init__(self, machine: Machine, pid: int) -> None:
        self._machine = machine
        self._pid = pid

    def me(self) -> ProcessIdentity:
        return ProcessIdentity(
            "host", self._pid, self._machine.place, self._machine.running[self._pid]
        )

    def is_alive(self, identity: ProcessIdentity) -> bool | None:
        if identity.place != self._machine.place:
            return None
        return self._machine.running.get(identity.pid) == identity.started


class World:
    def __init__(self) -> None:
        self.tree = NodeTree()
        self.here, self.there = Machine("here"), Machine("there")

    def presence(
        self,
        machine: Machine,
        pid: int,
        *,
        process: MemoryProcess | None = None,
        folder: str = "",
        take_over: bool = False,
    ) -> OwnerPresence:
        return OwnerPresence(
            MemoryNodes(self.tree, process),
            OWNERS,
            Runtime(clock=LoopClock(), random=random.Random(1), processes=machine.processes(pid)),
            location=LOCATION,
            folder=folder or f"/{machine.place}/{pid}",
            session_timeout_s=SESSION_S,
            take_over=take_over,
        )

    async def owned(
        self, machine: Machine, process: MemoryProcess | None = None, folder: str = ""
    ) -> LogMetadata:
        """The record of an owner that is process 1 there."""
        owner = await self.presence(machine, 1, process=process, folder=folder).announce(3, "tag")
        return LogMetadata(store_id="s", container_id=3, epoch=1, owner=owner, written_by="tag")


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    run_virtual(coroutine)


async def seconds(waiting: Coroutine[Any, Any, None]) -> float:
    begun = asyncio.get_running_loop().time()
    await waiting
    return asyncio.get_running_loop().time() - begun


def test_one_that_is_alive_on_this_machine_is_left_alone_at_once_and_named() -> None:
    async def main() -> None:
        world = World()
        record = await world.owned(world.here)
        begun = asyncio.get_running_loop().time()
        with pytest.raises(ContainerOwnedError) as caught:
            await world.presence(world.here, 2).ask(record)
        assert asyncio.get_running_loop().time() - begun < 1.0
        error = caught.value
        assert isinstance(error, StoreInUseError)
        assert (error.container_id, error.host, error.pid, error.address) == (
            3,
            "host",
            1,
            "memory",
        )
        assert record.owner is not None
        assert error.since == record.owner.since
        assert f"process 1 on host (memory) owns container 3 since {error.since}" in str(error)
        assert "--take-over" in str(error)
        await world.presence(world.here, 2, take_over=True).ask(record)

    run(main())


def test_one_that_died_on_this_machine_is_followed_at_once_though_its_session_goes_on() -> None:
    async def main() -> None:
        for after in ({2: "b"}, {1: "another one of its number", 2: "b"}):
            world, process = World(), MemoryProcess()
            record = await world.owned(world.here, process)
            process.die()
            world.here.running = after
            assert await seconds(world.presence(world.here, 2).ask(record)) < 1.0
            assert world.tree.content(owner_path(OWNERS, 3, "tag")) is not None

    run(main())


def test_one_that_closed_or_left_is_followed_at_once_wherever_it_was() -> None:
    async def main() -> None:
        world = World()
        leaving = world.presence(world.there, 1)
        record = LogMetadata(
            store_id="s",
            container_id=3,
            owner=await leaving.announce(3, "tag"),
            written_by="tag",
            epoch=1,
        )
        await leaving.leave(3, "tag")
        await leaving.leave(3, "tag")
        assert await seconds(world.presence(world.here, 2).ask(record)) < 1.0

    run(main())


def test_one_that_died_elsewhere_is_followed_when_its_session_has_ended() -> None:
    async def main() -> None:
        world, process = World(), MemoryProcess()
        record = await world.owned(world.there, process)
        process.die()
        assert (
            SESSION_S
            <= await seconds(world.presence(world.here, 2).ask(record))
            < SESSION_S * SESSIONS_WAITED
        )

    run(main())


def test_one_that_is_alive_elsewhere_is_left_alone_after_its_session_could_have_ended() -> None:
    async def main() -> None:
        world = World()
        record = await world.owned(world.there)
        begun = asyncio.get_running_loop().time()
        with pytest.raises(ContainerOwnedError, match="its session did not end"):
            await world.presence(world.here, 2).ask(record)
        waited = asyncio.get_running_loop().time() - begun
        assert SESSION_S * SESSIONS_WAITED + EXTRA_S <= waited < 3 * SESSION_S

    run(main())


def test_the_one_before_in_our_own_folder_is_followed_for_its_lock_is_ours() -> None:
    async def main() -> None:
        world = World()
        record = await world.owned(world.here, folder="/stores/one")
        assert await seconds(world.presence(world.here, 2, folder="/stores/one").ask(record)) < 1.0
        # A folder of this name on another machine is another folder: the name says nothing by
        # itself.
        record = await world.owned(world.there, folder="/stores/one")
        with pytest.raises(ContainerOwnedError):
            await world.presence(world.here, 2, folder="/stores/one").ask(record)

    run(main())


def test_one_of_an_older_version_said_nothing_and_is_followed() -> None:
    async def main() -> None:
        world = World()
        record = await world.owned(world.there)
        assert await seconds(world.presence(world.here, 2).ask(replace(record, owner=None))) < 1.0

    run(main())


def test_one_that_slept_past_its_session_is_seen_again_when_it_wakes() -> None:
    async def main() -> None:
        world, process = World(), MemoryProcess()
        record = await world.owned(world.there, process)
        nodes = MemoryNodes(world.tree)
        path = owner_path(OWNERS, 3, "tag")
        sleeper = MemoryNodes(world.tree, process)
        await sleeper.hold(path, b"{}")
        process.sleep()
        assert await seconds(world.presence(world.here, 2).ask(record)) >= SESSION_S
        assert await nodes.read(path) is None
        process.wake()
        await sleeper.read("/")
        assert await nodes.read(path) is not None

    run(main())


@given(
    st.builds(
        OwnerNode,
        st.builds(
            LogOwner,
            st.text(max_size=99),
            st.integers(0, 2**31),
            st.text(max_size=99),
            st.text(max_size=99),
        ),
        st.text(),
        st.text(),
        st.text(),
        st.floats(0, 1e6),
    )
)
def test_what_an_owner_says_of_itself_is_read_back(node: OwnerNode) -> None:
    assert decode_owner_node(encode_owner_node(node)) == node


WHOLE = encode_owner_node(OwnerNode(LogOwner("host", 1, "", ""), "there", "a", "", 77.0))


def test_the_whole_of_an_owners_words_is_understood() -> None:
    assert decode_owner_node(WHOLE) is not None
    assert WHOLE.count(b"77.0") == 1


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{}", b"\xff", b'{"host": 1}', b'"x"', b"null"]
    # None of these is a time after which a session has ended.
    + [
        WHOLE.replace(b"77.0", number) for number in (b"NaN", b"Infinity", b"-Infinity", b"9" * 400)
    ],
)
def test_an_owner_that_cannot_be_understood_is_alive_all_the_same(data: bytes) -> None:
    assert decode_owner_node(data) is None

    async def main() -> None:
        world = World()
        record = await world.owned(world.there)
        await MemoryNodes(world.tree).hold(owner_path(OWNERS, 3, "tag"), data)
        with pytest.raises(ContainerOwnedError):
            await world.presence(world.here, 2).ask(record)

    run(main())
