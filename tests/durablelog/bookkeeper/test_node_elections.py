"""NodeElections: answers that arrive too late, and nodes of others among the candidates."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Callable, Sequence

import pytest

from durablelog.bookkeeper.metadata_node import NodeUnavailableError, NodeWatch
from durablelog.bookkeeper.node_elections import ElectionCalls, NodeElections, candidates
from durablelog.bookkeeper.node_watches import NodeWatches
from recovery.harness.simulation.virtual_loop import run_virtual

PATH = "/leader"


class Service:
    """One election's nodes. A listing is answered when it may be."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.answers = asyncio.Event()
        self.answers.set()
        self.entered = 0
        self.watches = NodeWatches(lambda call: asyncio.get_running_loop().call_soon(call))
        calls = ElectionCalls(
            enter=self.enter, children=self.children, remove=self.remove, watch=self.watch
        )
        self.elections = NodeElections(calls, random.Random(1))

    async def enter(self, path: str, prefix: str, data: bytes) -> None:
        self.names.append(f"{prefix}{self.entered:010d}")
        self.entered += 1
        await asyncio.sleep(0)

    async def children(self, path: str) -> Sequence[str]:
        names = list(self.names)
        await asyncio.sleep(0)
        await self.answers.wait()
        return names

    async def remove(self, path: str) -> None:
        name = path.rpartition("/")[2]
        if name in self.names:
            self.names.remove(name)
            self.watches.report(path)

    def watch(self, path: str, changed: Callable[[], object]) -> NodeWatch:
        watch = self.watches.add(path, changed)
        self.watches.report(path)
        return watch


async def rest() -> None:
    """Until nothing moves any more: virtual time passes only then."""
    await asyncio.sleep(1)


def test_a_listing_from_before_a_lost_connection_makes_no_leader() -> None:
    async def scenario() -> None:
        service = Service()
        lost = asyncio.Event()
        await service.elections.lead(PATH, "me", lost.set)
        service.answers.clear()
        service.watches.report_all()
        await rest()  # a listing is on its way
        service.elections.disconnected()
        assert not service.elections.leads(PATH)
        again = asyncio.ensure_future(service.elections.lead(PATH, "me"))
        service.names.clear()  # the session has ended
        await service.enter(PATH, "other__lock__", b"")
        service.answers.set()
        await rest()
        assert lost.is_set()
        assert not again.done()
        assert not service.elections.leads(PATH)
        await service.remove(f"{PATH}/{service.names[0]}")
        await again
        assert service.elections.leads(PATH)
        await service.elections.close()

    run_virtual(scenario())


def test_other_nodes_are_no_candidates() -> None:
    names = [
        "b__lock__0000000002",
        "a__lock__0000000010",
        "c__lock__0000000001",
        "note",
        "__lock__",
    ]
    assert candidates(names) == [names[2], names[0], names[1]]


def test_who_resigns_while_another_call_waits_ends_it() -> None:
    async def scenario() -> None:
        service = Service()
        await service.enter(PATH, "other__lock__", b"")
        leading = asyncio.ensure_future(service.elections.lead(PATH, "me"))
        await rest()
        assert len(service.names) == 2
        await service.elections.resign(PATH)
        with pytest.raises(NodeUnavailableError, match="resigned"):
            await leading
        assert service.names == ["other__lock__0000000000"]
        await service.elections.close()

    run_virtual(scenario())


def test_ended_is_called_once_for_each_leadership_and_never_behind_a_close() -> None:
    async def scenario() -> None:
        service = Service()
        ended: list[int] = []
        for turn in range(3):
            await service.elections.lead(PATH, "me", functools.partial(ended.append, turn))
            service.elections.disconnected()
            service.elections.disconnected()
            service.watches.report_all()
            await rest()
            service.elections.disconnected()
            assert ended == list(range(turn + 1))
            service.watches.report_all()
        assert service.entered == 1, "the place is kept"
        await service.elections.lead(PATH, "me", lambda: ended.append(9))
        service.elections.disconnected()
        await service.elections.close()
        await rest()
        assert ended == [0, 1, 2]

    run_virtual(scenario())
