"""The Controller of a cluster, as one of its hosts has it (docs/decisions/0073)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from segmentstore.config import StoreConfig
from segmentstore.container import SegmentContainer
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.segment_mapper import container_of
from segmentstore.contracts.store_hosts import HostPlace
from segmentstore.controller.authorization import Authorizer
from segmentstore.controller.cluster_actions import ClusterActions
from segmentstore.controller.controller import Controller
from segmentstore.controller.controller_calls import CallCounts, ControllerCalls
from segmentstore.controller.controller_hosts import connector
from segmentstore.controller.controller_seat import ControllerSeat, TermParts
from segmentstore.controller.names import ROOT_TABLE
from segmentstore.controller.segment_actions import HostUnavailableError
from segmentstore.controller.store_actions import StoreActions
from segmentstore.controller.store_tables import StoreTables
from segmentstore.published_hosts import PublishedAddress
from segmentstore.service import SegmentStore
from segmentstore.store_parts import StoreParts
from segmentstore.tables.table_service import TableService
from segmentstore.wire.tokens import TokenKey


class ClusterPlaces:
    """`MovingHosts` of a cluster: by the assignment map, as this host has seen it last.

    Knows nothing before the host has joined.
    """

    def __init__(self, parts: StoreParts) -> None:
        self._parts = parts

    async def owner(self, container: int) -> HostPlace | None:
        """Which host is to serve a container; None: none is known."""
        of = self._parts.cluster_owner
        return None if of is None else await of(container)

    async def address_of(self, segment: str) -> PublishedAddress:
        container = container_of(segment, self._parts.config.containers)
        owner = await self.owner(container)
        if owner is None:
            raise HostUnavailableError(f"container {container}", "no host is known to serve it")
        return PublishedAddress(owner.host, owner.port)

    async def wire_addresses(self) -> Collection[PublishedAddress]:
        of = self._parts.cluster_places
        return {PublishedAddress(each.host, each.port) for each in await of()} if of else set()

    async def controllers(self) -> Sequence[PublishedAddress]:
        assert self._parts.cluster_places is not None, "no container serves here before"
        return [
            PublishedAddress(each.controller_host, each.controller_port)
            for each in await self._parts.cluster_places()
            if each.controller_port
        ]


def open_seat(
    store: SegmentStore,
    tables: TableService,
    parts: StoreParts,
    key: TokenKey | None,
    authorizer: Authorizer | None,
    runtime: Runtime,
) -> ControllerSeat:
    """What answers the calls of this host; what stops it is pushed on `parts.undo`."""
    config, registry = parts.config, parts.registry
    root = container_of(ROOT_TABLE, config.containers)
    places, counts = ClusterPlaces(parts), CallCounts()

    def is_here(segment: str) -> bool:
        return registry.running(container_of(segment, config.containers)) is not None

    def make() -> TermParts:
        actions = ClusterActions(
            StoreActions(store, tables, runtime.clock),
            is_here,
            places,
            connector(config, key, runtime),
            runtime.random,
        )
        controller = Controller(StoreTables(store, tables), actions, places, runtime)
        calls = ControllerCalls(controller, authorizer, counts, confirms=True)
        return TermParts(controller, calls, actions.close)

    seat = ControllerSeat(
        root,
        lambda: registry.running(root) is not None,
        make,
        lambda: places.owner(root),
        _trusted(config),
        counts,
        runtime.random,
    )

    def started(container: SegmentContainer) -> None:
        if container.container_id == root:
            seat.begin()

    def stopped(number: int) -> None:
        if number == root:
            seat.end()

    registry.watch(started, stopped)
    parts.undo.push(seat.stop)
    parts.controller_stats, parts.controller_health = seat.statistics, seat.health
    return seat


def _trusted(config: StoreConfig) -> Callable[[], bytes] | None:
    """Certificates that those of other hosts' Controllers are checked against."""
    path = config.tls_certificate_file
    return Path(path).read_bytes if path else None
