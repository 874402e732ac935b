"""Held nodes are as they are wanted, in whatever order that is said and sessions come and go."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest

from durablelog.bookkeeper.metadata_node import NodeUnavailableError
from durablelog.bookkeeper.node_holder import AGAIN_MAX_S, NodeHolder
from recovery.harness.simulation.virtual_loop import run_virtual


class Service:
    """The nodes of the session of now. Calls are answered while there is a connection."""

    def __init__(self) -> None:
        self.nodes: dict[str, bytes] = {}
        self.answers = asyncio.Event()
        self.answers.set()
        self.fails = False
        self.calls = 0
        self.holder = NodeHolder(self.make, self.remove, random.Random(1))

    async def make(self, path: str, data: bytes) -> None:
        await self._call(path)
        self.nodes[path] = data

    async def remove(self, path: str) -> None:
        await self._call(path)
        self.nodes.pop(path, None)

    def expire(self) -> None:
        """The session is over, and the next one begins."""
        self.nodes.clear()
        self.answers.set()
        self.holder.connected()

    async def _call(self, path: str) -> None:
        self.calls += 1
        await asyncio.sleep(0)
        await self.answers.wait()
        if self.fails:
            raise NodeUnavailableError(path, "no answer")


def run(scenario: Coroutine[Any, Any, None]) -> None:
    run_virtual(scenario)


async def rest() -> None:
    """Until nothing moves any more: virtual time passes only then."""
    await asyncio.sleep(1)


def test_what_is_held_is_created_again_in_each_session() -> None:
    async def scenario() -> None:
        service = Service()
        for name in ("a", "b"):
            await service.holder.hold(name, b"me")
        service.expire()
        await rest()
        assert service.nodes == {"a": b"me", "b": b"me"}
        await service.holder.release("a")
        service.expire()
        await rest()
        assert service.nodes == {"b": b"me"}

    run(scenario())


@pytest.mark.parametrize("turns", range(8))
def test_a_release_in_the_middle_of_a_renewal_leaves_nothing(turns: int) -> None:
    async def scenario() -> None:
        service = Service()
        for name in ("a", "b"):
            await service.holder.hold(name, b"me")
        service.expire()
        for _ in range(turns):
            await asyncio.sleep(0)
        await asyncio.gather(service.holder.release("a"), service.holder.release("b"))
        await rest()
        assert service.nodes == {}

    run(scenario())


@pytest.mark.parametrize("turns", range(1, 8))
def test_a_session_that_ends_in_the_middle_of_a_renewal_is_renewed_whole(turns: int) -> None:
    async def scenario() -> None:
        service = Service()
        held = {str(number): b"me" for number in range(3)}
        for name, data in held.items():
            await service.holder.hold(name, data)
        service.expire()
        for _ in range(turns):
            await asyncio.sleep(0)
        service.expire()
        await rest()
        assert service.nodes == held

    run(scenario())


def test_an_abandoned_release_is_done_all_the_same() -> None:
    async def scenario() -> None:
        service = Service()
        await service.holder.hold("a", b"me")
        service.answers.clear()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await service.holder.release("a")
        assert service.nodes == {"a": b"me"}
        service.answers.set()
        await rest()
        assert service.nodes == {}

    run(scenario())


def test_a_release_that_failed_is_done_with_the_next_connection() -> None:
    async def scenario() -> None:
        service = Service()
        await service.holder.hold("a", b"me")
        service.fails = True
        with pytest.raises(NodeUnavailableError):
            await service.holder.release("a")
        service.fails = False
        assert service.nodes == {"a": b"me"}
        service.holder.connected()  # of the same session
        await rest()
        assert service.nodes == {}

    run(scenario())


def test_a_release_that_failed_is_done_again_without_a_new_connection() -> None:
    async def scenario() -> None:
        service = Service()
        for name in ("a", "b"):
            await service.holder.hold(name, b"me")
        service.fails = True
        with pytest.raises(NodeUnavailableError):
            await service.holder.release("a")
        await asyncio.sleep(100 * AGAIN_MAX_S)
        assert 100 <= service.calls <= 300, "ever more rarely"
        service.fails = False
        await asyncio.sleep(AGAIN_MAX_S)
        assert service.nodes == {"b": b"me"}
        calls = service.calls
        await asyncio.sleep(100 * AGAIN_MAX_S)
        assert service.calls == calls
        await service.holder.close()

    run(scenario())


def test_a_close_ends_the_tries_to_release() -> None:
    async def scenario() -> None:
        service = Service()
        await service.holder.hold("a", b"me")
        service.fails = True
        with pytest.raises(NodeUnavailableError):
            await service.holder.release("a")
        await service.holder.close()
        calls = service.calls
        await asyncio.sleep(100 * AGAIN_MAX_S)
        assert service.calls == calls

    run(scenario())


def test_a_node_is_held_again_after_it_was_released() -> None:
    async def scenario() -> None:
        service = Service()
        await service.holder.hold("a", b"one")
        await asyncio.gather(service.holder.release("a"), service.holder.hold("a", b"two"))
        await rest()
        assert service.nodes == {"a": b"two"}

    run(scenario())


def test_a_close_ends_what_waits() -> None:
    async def scenario() -> None:
        service = Service()
        await service.holder.hold("a", b"me")
        service.answers.clear()
        service.holder.connected()
        letting = asyncio.gather(service.holder.release("a"), return_exceptions=True)
        await asyncio.sleep(0)
        await service.holder.close()
        (outcome,) = await letting
        assert isinstance(outcome, NodeUnavailableError)

    run(scenario())
