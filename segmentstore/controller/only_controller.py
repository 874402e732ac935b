"""The Controller of a store whose processes stay where the settings have them."""

from __future__ import annotations

from segmentstore.contracts.errors import ConfigError
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.segment_mapper import container_of
from segmentstore.controller.authorization import Authorizer
from segmentstore.controller.controller import Controller
from segmentstore.controller.controller_calls import CallAnswers, ControllerCalls
from segmentstore.controller.controller_hosts import published_addresses, segment_actions
from segmentstore.controller.host_map import HostsByContainer
from segmentstore.controller.names import ROOT_TABLE
from segmentstore.controller.store_tables import StoreTables
from segmentstore.published_hosts import PublishedAddress, is_wildcard
from segmentstore.service import SegmentStore
from segmentstore.store_parts import StoreParts
from segmentstore.tables.table_service import TableService
from segmentstore.wire.tokens import TokenKey


async def open_only_controller(
    store: SegmentStore,
    tables: TableService,
    parts: StoreParts,
    key: TokenKey | None,
    authorizer: Authorizer | None,
    runtime: Runtime,
) -> CallAnswers:
    """Start it, and give what answers its calls; what stops it is pushed on `parts.undo`.

    Raises ConfigError: another process has the container of its rows.
    """
    config = parts.config
    root = container_of(ROOT_TABLE, config.containers)
    if root not in config.served:
        raise ConfigError(
            "controller_port", f"the Controller is with container {root}, which serve leaves out"
        )
    addresses = published_addresses(config)
    actions, remote = segment_actions(store, tables, config, addresses, key, runtime)
    for each in remote:
        parts.undo.push(each.close)
    host = config.controller_host
    if is_wildcard(host):
        host = addresses[root].host
    hosts = HostsByContainer(addresses, (PublishedAddress(host, config.controller_port),))
    controller = Controller(StoreTables(store, tables), actions, hosts, runtime)
    await controller.start()
    parts.undo.push(controller.stop)
    calls = ControllerCalls(controller, authorizer)
    parts.undo.push(calls.stop)
    parts.controller_stats, parts.controller_health = calls.statistics, calls.health
    return calls
