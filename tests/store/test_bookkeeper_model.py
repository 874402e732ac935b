"""The whole public API against the plain model once more, on BookKeeper: ledgers fail, and other
owners take over.
"""

from __future__ import annotations

import asyncio
import shutil

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from segmentstore import SegmentStore
from segmentstore.contracts.runtime import Runtime
from segmentstore.open_steps import open_store
from tests.store.bookkeeper_world import URL, BookKeeperWorld
from tests.store.harness import TINY
from tests.store.test_model import EXAMPLES, StoreMachine, payloads, picks
from tests.support.suites import sized


class BookKeeperStoreMachine(StoreMachine):
    """As on files, but that Tier 1 outlives folders, and that a takeover finds the owner before
    alive.
    """

    def __init__(self) -> None:
        super().__init__()
        self.world = BookKeeperWorld()

    def reopen(self) -> None:
        # Not in the store's folder, of which there is another one after each crash.
        shared = {
            "tier1": URL,
            "take_over": True,
            "tier2": (self.folder / "shared" / "tier2").as_uri(),
        }

        async def opened() -> SegmentStore:
            async with asyncio.timeout(60):
                options = {**TINY, **self.options, **shared}
                return SegmentStore(
                    await open_store(
                        self.location, options, {}, Runtime(disk=self.disk), self.world
                    )
                )

        self.store = self.runner.run(opened())

    @rule(code=st.sampled_from([-6, -11, -12, -21, -101]), kept=st.integers(0, 2))
    def a_ledger_fails(self, code: int, kept: int) -> None:
        """With the next append: what was on its way is settled, and the log goes on in another
        one.
        """
        if not self.world.cluster._planted_adds:
            self.world.cluster.fail_add(code, kept=kept)

    @rule(
        burst=st.lists(st.tuples(picks, payloads), max_size=12),
        turns=st.integers(0, 8),
    )
    def crash_and_reopen(self, burst: list[tuple[tuple[int, str], bytes]], turns: int) -> None:
        """Another owner takes over while this one is at work: whatever that one has acknowledged
        until its end is there.
        """
        self.lives += 1
        sends = [(self.pick(pick), data) for pick, data in burst]
        old, before = self.open_store, self.location

        async def send() -> list[asyncio.Future[int]]:
            futures = [old.append(name, data) for name, data in sends]
            for _ in range(turns):
                await asyncio.sleep(0)
            return futures

        futures = self.runner.run(send())
        self.location = self.disk.crash_copy(before, self.folder / str(self.lives))
        self.reopen()

        async def end() -> list[tuple[str, bytes, bool]]:
            await asyncio.gather(*futures, return_exceptions=True)
            await old.close()
            done = [future.exception() is None for future in futures]
            return [
                (name, data, acknowledged)
                for (name, data), acknowledged in zip(sends, done, strict=True)
            ]

        sent = self.runner.run(end())
        shutil.rmtree(before)
        for container in range(self.model.containers):
            self.adopt_unknown(
                [item for item in sent if self.model.container(item[0]) == container]
            )
        self.check_everything()


TestBookKeeperStoreMachine = BookKeeperStoreMachine.TestCase
TestBookKeeperStoreMachine.settings = settings(
    max_examples=max(1, EXAMPLES // 6),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestBookKeeperStoreMachine.pytestmark = [  # type: ignore[attr-defined]
    pytest.mark.timeout(300 + EXAMPLES),
    sized(30),
]
