"""The hosts of a store as ZooKeeper has them, for a client that knows none of them.

A search has a session of its own, which ends with it: clients are many, and need ZooKeeper seldom.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

# The module, not the name: a test puts nodes in memory there.
from durablelog.bookkeeper import bookkeeper_clients
from durablelog.bookkeeper.bookkeeper_location import ZOOKEEPER_AUTH_VARIABLE, BookKeeperLocation
from durablelog.bookkeeper.metadata_node import (
    MetadataNodes,
    NodeRefusedError,
    NodeUnavailableError,
)
from durablelog.bookkeeper.store_node import read_identity
from segmentstore.cluster.assignment_map import AssignmentMap
from segmentstore.cluster.cluster_nodes import ClusterNodes, newest
from segmentstore.cluster.host_addresses import HostAddresses
from segmentstore.contracts.errors import (
    AccessRefusedError,
    NotAStoreError,
    StoreUnreachableError,
)
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.store_hosts import FoundStore

_NO_STORE: Final = (
    "ZooKeeper has none at that path: correct the path, or make the store there with "
    "`segmentstore serve FOLDER --create`"
)
_NO_HOSTS: Final = "no host of it is registered: start one with `segmentstore serve --host`"


async def find_hosts(
    location: BookKeeperLocation, environment: Mapping[str, str], runtime: Runtime
) -> FoundStore:
    """The registered hosts, and what the map assigns to them: a session, and a read for each host
    and three more.

    Raises StoreUnreachableError (ZooKeeper does not answer, or no host is registered),
    AccessRefusedError, NotAStoreError, DataCorruptionError, ConfigError (a secret that cannot be
    read), MissingExtraError.
    """
    url = location.zookeeper_url
    nodes = await bookkeeper_clients.open_nodes(location, environment, runtime)
    try:
        found = await _read(nodes, location)
    except NodeUnavailableError as error:
        detail = f"ZooKeeper does not answer ({error}): start it, or correct its address"
        raise StoreUnreachableError(url, detail) from error
    except NodeRefusedError as error:
        detail = f"{error}: zookeeper_auth_file, or {ZOOKEEPER_AUTH_VARIABLE}, has credentials"
        raise AccessRefusedError(detail) from error
    finally:
        await nodes.close()
    if not found.hosts.hosts:
        raise StoreUnreachableError(url, _NO_HOSTS)
    return found


async def _read(nodes: MetadataNodes, location: BookKeeperLocation) -> FoundStore:
    identity = await read_identity(nodes, location.path)
    if identity is None:
        raise NotAStoreError(location.zookeeper_url, _NO_STORE)
    here = ClusterNodes(nodes, location.path)
    stored = await here.read_map()
    assigned = AssignmentMap() if stored is None else stored.map
    registered = newest(await here.host_nodes())
    hosts = await HostAddresses(here).of(assigned, registered)
    return FoundStore(identity.store_id, identity.containers, hosts)
