"""Which processes serve the segments of a Controller, and what it does to those of others."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping, Sequence

from segmentstore.config import StoreConfig
from segmentstore.contracts.errors import ConfigError
from segmentstore.contracts.permission import Permission
from segmentstore.contracts.runtime import Runtime
from segmentstore.controller.host_map import HostsByContainer
from segmentstore.controller.remote_actions import RemoteActions
from segmentstore.controller.routed_actions import ActionsByHost
from segmentstore.controller.segment_actions import SegmentActions
from segmentstore.controller.store_actions import StoreActions
from segmentstore.published_hosts import PublishedAddress, published_hosts
from segmentstore.service import SegmentStore
from segmentstore.tables.table_service import TableService
from segmentstore.wire.tokens import TokenKey


def published_addresses(config: StoreConfig) -> Mapping[int, PublishedAddress]:
    """Where clients reach each container."""
    if config.wire_hosts:
        return published_hosts(config.wire_hosts, config.containers)
    wire = PublishedAddress(config.wire_host, config.wire_port)
    return dict.fromkeys(range(config.containers), wire)


def segment_actions(
    store: SegmentStore,
    tables: TableService,
    config: StoreConfig,
    addresses: Mapping[int, PublishedAddress],
    key: TokenKey | None,
    runtime: Runtime,
) -> tuple[SegmentActions, Sequence[RemoteActions]]:
    """What the Controller does to segments, and what of it is to be closed.

    Raises ConfigError if an address has containers of ours and of others.
    """
    here = StoreActions(store, tables, runtime.clock)
    served = set(config.served)
    ours = {address for each, address in addresses.items() if each in served}
    others = {address for each, address in addresses.items() if each not in served}
    if ours & others:
        raise ConfigError("wire_hosts", "an address has containers that serve leaves out")
    if not others:
        return here, ()

    connect = connector(config, key, runtime)
    remote = {each: connect(each) for each in others}
    by_address: dict[PublishedAddress, SegmentActions] = dict.fromkeys(ours, here)
    return ActionsByHost(HostsByContainer(addresses), by_address | remote), [*remote.values()]


def connector(
    config: StoreConfig, key: TokenKey | None, runtime: Runtime
) -> Callable[[PublishedAddress], RemoteActions]:
    """What makes the actions on segments at an address; nothing connects before the first one."""

    def token() -> str:
        if key is None:
            return ""
        now_s = runtime.clock.time_ms() // 1000
        return key.sign("controller", {"prn::*": Permission.READ_UPDATE}, now_s)

    return lambda address: RemoteActions(address, token, _client_tls(config))


def _client_tls(config: StoreConfig) -> ssl.SSLContext | None:
    """Of connections to other processes: they have our certificate, one of its authority, or a
    public one.
    """
    if not config.tls_certificate_file:
        return None
    context = ssl.create_default_context()
    context.load_verify_locations(config.tls_certificate_file)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    # By default from Python 3.13 on: clients of the ports do not require it either.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context
