"""The ports on which others reach an open store: the wire server's and the Controller's.

The tables of the store are opened with the first of them. All is closed in reverse, before
anything else of the store.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from segmentstore.config import StoreConfig
from segmentstore.contracts.errors import ConfigError
from segmentstore.contracts.extras import require_extra
from segmentstore.contracts.runtime import Runtime
from segmentstore.server.server_context import ServerContext
from segmentstore.server.tls import CertificateFiles
from segmentstore.server.wire_server import WireServer
from segmentstore.service import SegmentStore
from segmentstore.store_parts import StoreParts
from segmentstore.tables.index_files import make_index_store
from segmentstore.tables.table_service import TableService

if TYPE_CHECKING:
    from segmentstore.controller.controller_calls import CallAnswers
    from segmentstore.server.authorization import TokenAuthorization
    from segmentstore.wire.tokens import TokenKey


async def open_ports(store: SegmentStore, parts: StoreParts, runtime: Runtime) -> WireServer:
    """Listen on the ports that the settings name; what closes them is pushed on `parts.undo`.

    Raises ConfigError, MissingExtraError.
    """
    config = parts.config
    certificates: CertificateFiles | None = None
    if config.tls_certificate_file and (config.wire_port or config.controller_port):
        certificates = CertificateFiles(config.tls_certificate_file, config.tls_key_file, runtime)
    wire = make_server(store, parts, runtime)
    if config.wire_port:
        authorization = _token_authorization(config, runtime)
        await wire.listen(config.wire_host, config.wire_port, certificates, authorization)
        parts.registry.watch(wire.clean_up, lambda _: None)
        parts.wire_stats = wire.statistics
    if config.controller_port:
        await _open_controller(store, wire.context.tables, parts, runtime, certificates)
    return wire


def make_server(store: SegmentStore, parts: StoreParts, runtime: Runtime) -> WireServer:
    """A server that listens nowhere yet, with the tables of the store; what closes both is pushed
    on `parts.undo`.
    """
    tables = TableService(store, make_index_store(parts.location, parts.store_id, runtime))
    parts.undo.push(tables.close)
    parts.table_stats = tables.statistics
    wire = WireServer(ServerContext(store, tables, runtime))
    parts.undo.push(wire.close)
    return wire


def _token_authorization(config: StoreConfig, runtime: Runtime) -> TokenAuthorization | None:
    if not config.token_key_file:
        return None
    require_extra("server", "token_key_file")
    # Not at the top: it needs the extra.
    from segmentstore.server.authorization import TokenAuthorization  # noqa: PLC0415

    return TokenAuthorization(_token_key(config), runtime.clock)


def _token_key(config: StoreConfig) -> TokenKey:
    from segmentstore.wire.tokens import TokenKey  # noqa: PLC0415

    try:
        key = Path(config.token_key_file).read_bytes()
    except OSError as error:
        raise ConfigError("token_key_file", f"it cannot be read: {error.strerror}") from error
    return TokenKey(key.rstrip(b"\r\n"))


async def _open_controller(
    store: SegmentStore,
    tables: TableService,
    parts: StoreParts,
    runtime: Runtime,
    certificates: CertificateFiles | None,
) -> None:
    require_extra("server", "controller_port")
    # Not at the top: gRPC is an extra.
    from segmentstore.controller.authorization import (  # noqa: PLC0415
        UserAuthorizer,
        UsersFile,
    )
    from segmentstore.controller.cluster_controller import open_seat  # noqa: PLC0415
    from segmentstore.controller.controller_server import ControllerServer  # noqa: PLC0415
    from segmentstore.controller.only_controller import open_only_controller  # noqa: PLC0415

    config = parts.config
    key = _token_key(config) if config.token_key_file else None
    authorizer: UserAuthorizer | None = None
    if config.users_file:
        assert key is not None
        authorizer = UserAuthorizer(UsersFile(config.users_file), key, runtime)
        parts.undo.push(authorizer.close)
    answers: CallAnswers
    if config.joins_cluster:
        answers = open_seat(store, tables, parts, key, authorizer, runtime)
    else:
        answers = await open_only_controller(store, tables, parts, key, authorizer, runtime)
    server = ControllerServer(
        answers,
        config.controller_host,
        config.controller_port,
        key_pair=None if certificates is None else certificates.key_pair,
    )
    await server.start()
    parts.undo.push(server.stop)
