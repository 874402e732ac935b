"""The ports that Pravega's clients use: the wire server's and the Controller's, as settings say.

The tables of the store are opened with the first of them. All is closed in reverse, before
anything else of the store.
"""

from __future__ import annotations

from segmentstore.contracts.extras import require_extra
from segmentstore.contracts.runtime import Runtime
from segmentstore.server.wire_server import WireServer
from segmentstore.service import SegmentStore
from segmentstore.store_parts import StoreParts
from segmentstore.tables.index_files import make_index_store
from segmentstore.tables.table_service import TableService


async def open_ports(store: SegmentStore, parts: StoreParts, runtime: Runtime) -> None:
    """Listen on the ports that the settings name; what closes them is pushed on `parts.undo`.

    Raises ConfigError, MissingExtraError.
    """
    config = parts.config
    tables = TableService(store, make_index_store(parts.location, parts.store_id, runtime))
    parts.undo.push(tables.close)
    if config.wire_port:
        wire = await WireServer.open(store, tables, config.wire_host, config.wire_port, runtime)
        parts.undo.push(wire.close)
        parts.wire_stats = wire.statistics
    if config.controller_port:
        await _open_controller(store, tables, parts, runtime)


async def _open_controller(
    store: SegmentStore, tables: TableService, parts: StoreParts, runtime: Runtime
) -> None:
    require_extra("server", "controller_port")
    # Not at the top: gRPC is an extra.
    from segmentstore.controller.controller import Controller  # noqa: PLC0415
    from segmentstore.controller.controller_server import ControllerServer  # noqa: PLC0415
    from segmentstore.controller.host_map import (  # noqa: PLC0415
        HostsByContainer,
        PublishedAddress,
    )
    from segmentstore.controller.store_actions import StoreActions  # noqa: PLC0415
    from segmentstore.controller.store_tables import StoreTables  # noqa: PLC0415

    config = parts.config
    wire = PublishedAddress(config.wire_host, config.wire_port)
    hosts = HostsByContainer(dict.fromkeys(range(config.containers), wire))
    controller = Controller(
        StoreTables(store, tables),
        StoreActions(store, tables, runtime.clock),
        hosts,
        (PublishedAddress(config.controller_host, config.controller_port),),
        runtime,
    )
    await controller.start()
    parts.undo.push(controller.stop)
    server = ControllerServer(controller, config.controller_host, config.controller_port)
    await server.start()
    parts.undo.push(server.stop)
