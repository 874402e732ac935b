"""RoutedActions: `SegmentActions` of segments in several processes, each where it is served."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from segmentstore.controller.host_map import SegmentHosts
from segmentstore.controller.segment_actions import SegmentActions, SegmentState
from segmentstore.controller.stream_model import ScalingPolicy
from segmentstore.published_hosts import PublishedAddress

T = TypeVar("T")


class RoutedActions(ABC):
    """Each action is passed to the process that serves its segment."""

    @abstractmethod
    async def _act(self, name: str, act: Callable[[SegmentActions], Awaitable[T]]) -> T:
        """Call `act` with the actions of the process that serves the segment."""

    async def create(self, name: str, policy: ScalingPolicy, rollover_bytes: int) -> None:
        await self._act(name, lambda there: there.create(name, policy, rollover_bytes))

    async def create_table(self, name: str, key_length: int) -> None:
        await self._act(name, lambda there: there.create_table(name, key_length))

    async def seal(self, name: str) -> None:
        await self._act(name, lambda there: there.seal(name))

    async def delete(self, name: str) -> None:
        await self._act(name, lambda there: there.delete(name))

    async def delete_table(self, name: str) -> None:
        await self._act(name, lambda there: there.delete_table(name))

    async def truncate(self, name: str, offset: int) -> None:
        await self._act(name, lambda there: there.truncate(name, offset))

    async def merge_batch(self, target: str, sources: Sequence[str]) -> None:
        # Segments of transactions are in the container of their stream's segment.
        await self._act(target, lambda there: there.merge_batch(target, sources))

    async def info(self, name: str) -> SegmentState | None:
        return await self._act(name, lambda there: there.info(name))

    async def update_policy(self, name: str, policy: ScalingPolicy) -> None:
        await self._act(name, lambda there: there.update_policy(name, policy))


class ActionsByHost(RoutedActions):
    """Of processes that do not change."""

    def __init__(
        self, hosts: SegmentHosts, actions: Mapping[PublishedAddress, SegmentActions]
    ) -> None:
        """`actions` has all addresses that `hosts` gives."""
        self._hosts = hosts
        self._actions = actions

    async def _act(self, name: str, act: Callable[[SegmentActions], Awaitable[T]]) -> T:
        return await act(self._actions[await self._hosts.address_of(name)])
