"""Watches and elections in memory: planted failures, outages, and processes that fall silent."""

from __future__ import annotations

import asyncio

import pytest

from durablelog.bookkeeper.memory_nodes import MemoryNodes, NodeTree
from durablelog.bookkeeper.memory_process import MemoryProcess
from durablelog.bookkeeper.memory_sessions import CHECK_S, SESSION_S
from durablelog.bookkeeper.metadata_node import (
    NodeContent,
    NodeRefusedError,
    NodeUnavailableError,
)
from recovery.harness.simulation.virtual_loop import run_virtual
from tests.contracts.node_coordination_contract import Calls, candidates

EXPIRED_S = SESSION_S + 2 * CHECK_S


@pytest.mark.parametrize("happens", [False, True])
def test_a_candidate_whose_node_got_no_answer_has_one_node(happens: bool) -> None:
    async def scenario() -> None:
        tree = NodeTree()
        nodes = MemoryNodes(tree)
        tree.fail("lead", happens=happens, times=2)
        tree.fail("children")
        await nodes.lead("/leader", "me")
        assert nodes.leads("/leader")
        assert len(tree.names_under("/leader")) == 1
        await nodes.close()
        assert tree.names_under("/leader") == []

    run_virtual(scenario())


@pytest.mark.parametrize("happens", [False, True])
def test_who_resigns_does_so_until_it_has_happened(happens: bool) -> None:
    async def scenario() -> None:
        tree = NodeTree()
        nodes, other = MemoryNodes(tree), MemoryNodes(tree)
        await nodes.lead("/leader", "me")
        waiting = asyncio.ensure_future(other.lead("/leader", "other"))
        tree.fail("resign", happens=happens, times=3)
        resigning = asyncio.ensure_future(nodes.resign("/leader"))
        await asyncio.sleep(0)
        assert not nodes.leads("/leader")
        resigning.cancel()  # it goes on
        await waiting
        await nodes.resign("/leader")
        assert len(tree.names_under("/leader")) == 1
        await nodes.close()
        await other.close()

    run_virtual(scenario())


@pytest.mark.parametrize("call", ["lead", "children"])
def test_a_candidate_that_is_refused_leaves_nothing(call: str) -> None:
    async def scenario() -> None:
        tree = NodeTree()
        nodes, other = MemoryNodes(tree), MemoryNodes(tree)
        tree.refuse("lead" if call == "lead" else "children")
        with pytest.raises(NodeRefusedError):
            await nodes.lead("/leader", "me")
        await nodes.resign("/leader")
        await other.lead("/leader", "other")
        await nodes.close()
        await other.close()

    run_virtual(scenario())


def test_a_leader_that_is_refused_later_leads_no_more_until_it_is_asked_to() -> None:
    async def scenario() -> None:
        tree = NodeTree()
        nodes = MemoryNodes(tree)
        ended = asyncio.Event()
        await nodes.lead("/leader", "me", ended.set)
        await asyncio.sleep(CHECK_S)
        tree.refuse("children")
        tree.put(f"/leader/{tree.names_under('/leader')[0]}", b"written by a person")
        await ended.wait()
        assert not nodes.leads("/leader")
        await nodes.lead("/leader", "me", ended.set)
        assert len(tree.names_under("/leader")) == 1
        await nodes.close()

    run_virtual(scenario())


def test_behind_an_outage_everything_is_reported_and_the_place_is_kept() -> None:
    async def scenario() -> None:
        tree = NodeTree()
        nodes, other = MemoryNodes(tree), MemoryNodes(tree)
        calls, ended = Calls(), asyncio.Event()
        await nodes.create("/n", b"")
        nodes.watch("/n", calls)
        await nodes.lead("/leader", "me", ended.set)
        waiting = asyncio.ensure_future(other.lead("/leader", "other"))
        await candidates(nodes, "/leader", [b"me", b"other"])
        before = calls.count
        tree.outage = True
        await ended.wait()
        assert not nodes.leads("/leader")
        tree.put("/n", b"meanwhile")
        again = asyncio.ensure_future(nodes.lead("/leader", "me"))
        await asyncio.sleep(10 * SESSION_S)
        assert calls.count == before
        assert not again.done()
        tree.outage = False
        await calls.until(lambda: nodes.read("/n"), NodeContent(b"meanwhile", 1))
        await again
        assert nodes.leads("/leader")
        assert not waiting.done()
        await nodes.close()
        await waiting
        await other.close()

    run_virtual(scenario())


def test_a_silent_leader_is_followed_and_notices_when_it_wakes_up() -> None:
    async def scenario() -> None:
        tree, process = NodeTree(), MemoryProcess()
        sleeper, other = MemoryNodes(tree, process), MemoryNodes(tree)
        ended, calls = asyncio.Event(), Calls()
        await sleeper.hold("/hosts/sleeper", b"here")
        await sleeper.lead("/leader", "sleeper", ended.set)
        waiting = asyncio.ensure_future(other.lead("/leader", "other"))
        await candidates(other, "/leader", [b"sleeper", b"other"])
        other.watch("/hosts/sleeper", calls)
        process.sleep()
        await asyncio.sleep(SESSION_S / 2)
        assert not waiting.done()
        await calls.until(lambda: other.read("/hosts/sleeper"), None)
        await waiting
        await asyncio.sleep(EXPIRED_S)
        assert sleeper.leads("/leader"), "two believe that they lead"
        assert other.leads("/leader")
        assert not ended.is_set()
        process.wake()
        await ended.wait()
        assert not sleeper.leads("/leader")
        await calls.until(lambda: other.read("/hosts/sleeper"), NodeContent(b"here", 0))
        await sleeper.close()
        await other.close()

    run_virtual(scenario())


def test_a_process_that_wakes_up_in_time_has_lost_nothing() -> None:
    async def scenario() -> None:
        tree, process = NodeTree(), MemoryProcess()
        sleeper, other = MemoryNodes(tree, process), MemoryNodes(tree)
        calls = Calls()
        await sleeper.lead("/leader", "sleeper")
        waiting = asyncio.ensure_future(other.lead("/leader", "other"))
        sleeper.watch("/n", calls)
        await candidates(other, "/leader", [b"sleeper", b"other"])
        for _ in range(3):
            before = calls.count
            process.sleep()
            tree.put("/n", b"")
            await asyncio.sleep(SESSION_S - 2 * CHECK_S)
            assert calls.count == before, "it sleeps"
            process.wake()
            await asyncio.sleep(2 * CHECK_S)
            assert calls.count == before + 1
        assert sleeper.leads("/leader")
        assert not waiting.done()
        await sleeper.close()
        await waiting
        await other.close()

    run_virtual(scenario())


def test_a_dead_leader_is_followed_in_the_time_of_a_session() -> None:
    async def scenario() -> None:
        tree, process = NodeTree(), MemoryProcess()
        dead, other = MemoryNodes(tree, process), MemoryNodes(tree)
        await dead.lead("/leader", "dead")
        waiting = asyncio.ensure_future(other.lead("/leader", "other"))
        await candidates(other, "/leader", [b"dead", b"other"])
        died = asyncio.get_running_loop().time()
        process.die()
        await waiting
        assert SESSION_S <= asyncio.get_running_loop().time() - died <= EXPIRED_S
        await other.close()

    run_virtual(scenario())


def test_a_resignation_that_a_close_overtakes_is_unavailable() -> None:
    async def scenario() -> None:
        tree = NodeTree()
        nodes = MemoryNodes(tree)
        await nodes.lead("/leader", "me")
        tree.fail("resign", times=1000)
        resigning = asyncio.ensure_future(nodes.resign("/leader"))
        await asyncio.sleep(CHECK_S)
        await nodes.close()
        with pytest.raises(NodeUnavailableError):
            await resigning
        assert tree.names_under("/leader") == [], "it went with the session"

    run_virtual(scenario())


def test_what_a_watch_raises_stops_no_other() -> None:
    async def scenario() -> None:
        tree = NodeTree()
        nodes = MemoryNodes(tree)
        raised: list[BaseException | None] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: raised.append(context.get("exception")))
        calls = Calls()
        nodes.watch("/n", lambda: 1 // 0)
        nodes.watch("/n", calls)
        await calls.until(lambda: nodes.read("/n"), None)
        await nodes.create("/n", b"")
        await calls.until(lambda: nodes.read("/n"), NodeContent(b"", 0))
        assert [type(each) for each in raised] == [ZeroDivisionError, ZeroDivisionError]
        await nodes.close()

    run_virtual(scenario())
