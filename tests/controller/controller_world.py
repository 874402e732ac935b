"""Controllers over a fake store, on the virtual loop."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

from segmentstore.contracts.runtime import Runtime
from segmentstore.controller.controller import Controller
from segmentstore.controller.host_map import HostsByContainer
from segmentstore.controller.names import ScopedName
from segmentstore.controller.refusals import Reason, RefusedRequestError
from segmentstore.controller.stream_model import ScalingPolicy, StreamConfiguration
from segmentstore.published_hosts import PublishedAddress
from tests.controller.fake_store import FakeActions, FakeDisk, FakeProcess, FakeTables
from tests.support.loop_clock import LoopBoot, LoopClock

ADDRESS: Final = PublishedAddress("127.0.0.1", 12345)
STREAM: Final = ScopedName("s", "a")
TWO: Final = StreamConfiguration(scaling=ScalingPolicy(segments=2))
ONE: Final = StreamConfiguration()
LEASE_MS: Final = 10_000


def make_controller(
    process: FakeProcess,
    seed: int = 1,
    tables: FakeTables | None = None,
    clock: LoopClock | None = None,
    boot: LoopBoot | None = None,
) -> Controller:
    clock, boot = clock or LoopClock(), boot or LoopBoot()
    runtime = Runtime(clock=clock, random=random.Random(seed), boot=boot)
    hosts = HostsByContainer({0: ADDRESS}, [ADDRESS])
    return Controller(tables or FakeTables(process), FakeActions(process), hosts, runtime)


@asynccontextmanager
async def running(
    process: FakeProcess,
    tables: FakeTables | None = None,
    seed: int = 1,
    clock: LoopClock | None = None,
    boot: LoopBoot | None = None,
) -> AsyncIterator[Controller]:
    controller = make_controller(process, seed, tables, clock, boot)
    await controller.start()
    try:
        yield controller
    finally:
        await controller.stop()


@asynccontextmanager
async def with_stream(
    configuration: StreamConfiguration = ONE,
) -> AsyncIterator[tuple[Controller, FakeDisk]]:
    """A Controller that has a scope and a stream."""
    disk = FakeDisk()
    async with running(FakeProcess(disk)) as controller:
        await controller.scopes.create(STREAM.scope)
        await controller.streams.create(STREAM, configuration)
        yield controller, disk


@asynccontextmanager
async def refused(reason: Reason) -> AsyncIterator[None]:
    with pytest.raises(RefusedRequestError) as caught:
        yield
    assert caught.value.reason is reason


Scenario = Callable[[Controller, FakeDisk], Coroutine[Any, Any, object]]
