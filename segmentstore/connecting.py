"""`segmentstore.connect`: to a folder, to addresses, or to the hosts that ZooKeeper knows."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from functools import partial
from typing import Final, overload

from segmentstore.client import connecting
from segmentstore.client.cluster_store import ClusterStore
from segmentstore.client.connecting import ConnectingStore, checked_retry_s, reached_cluster
from segmentstore.client.remote_store import RemoteStore
from segmentstore.client.store_addresses import StoreAddress
from segmentstore.contracts.errors import ConfigError, InvalidArgumentError
from segmentstore.contracts.extras import require_extra
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.urls import redacted

ZOOKEEPER_PREFIX: Final = "zookeeper://"


@overload
def connect(
    location: os.PathLike[str], *, tls: ssl.SSLContext | None = None
) -> ConnectingStore[RemoteStore]: ...
@overload
def connect(
    location: str | os.PathLike[str],
    *,
    tls: ssl.SSLContext | None = None,
    retry_s: float | None = None,
) -> ConnectingStore[RemoteStore] | ConnectingStore[ClusterStore]: ...
def connect(
    location: str | os.PathLike[str],
    *,
    tls: ssl.SSLContext | None = None,
    retry_s: float | None = None,
) -> ConnectingStore[RemoteStore] | ConnectingStore[ClusterStore]:
    """Connect to a store that another process has open (or this one), or several as a cluster.

    `location` is the store's folder, on this machine, or "host:port" of its wire server
    (`wire_port`). Hosts of a cluster (`serve="cluster"`) are found by ZooKeeper, at
    "zookeeper://host:2181,host:2181/path" with the path of the store's `bookkeeper://` URL. Or some
    of them are named, "host:port,host:port"; of one alone: "host:port,". A folder whose name looks
    like an address is written `./name:1`. `tls` encrypts a connection to a port, not one to
    ZooKeeper. The result has the API of an open store (`segmentstore.store_api`).

    Calls of a cluster follow its containers: what was not taken is asked again for `retry_s`
    seconds, 60 by default, and then raises the last error.

    Raises InvalidArgumentError for what is none of these, and MissingExtraError. When awaited or
    entered it raises StoreUnreachableError, and AccessRefusedError of a port with tokens, or of
    ZooKeeper. NotAStoreError says that there is no store at the path, ConfigError that a file of
    credentials cannot be read. Costs two round trips; with ZooKeeper a session there, and a read
    for each host.
    """
    if isinstance(location, str) and location.lower().startswith(ZOOKEEPER_PREFIX):
        seconds = checked_retry_s(retry_s)
        return _by_zookeeper(location, tls, seconds, os.environ, Runtime())
    if isinstance(location, str) and location.lower().startswith("bookkeeper://"):
        detail = "that is a log, and clients do not open it: write zookeeper:// for it, and no keys"
        raise InvalidArgumentError("location", redacted(location), detail)
    # By its own overload it gives one of the two.
    return connecting.connect(location, tls=tls, retry_s=retry_s)


def _by_zookeeper(
    url: str,
    tls: ssl.SSLContext | None,
    retry_s: float,
    environment: Mapping[str, str],
    runtime: Runtime,
) -> ConnectingStore[ClusterStore]:
    require_extra("bookkeeper", "a cluster found by ZooKeeper")
    # Not at the top: other clients load nothing of the engine.
    from durablelog.bookkeeper.bookkeeper_location import BookKeeperLocation  # noqa: PLC0415
    from segmentstore.cluster.host_search import find_hosts  # noqa: PLC0415

    try:
        location = BookKeeperLocation.parse_zookeeper(url)
    except ConfigError as error:
        raise InvalidArgumentError("location", redacted(url), error.reason) from None
    search = partial(find_hosts, location, environment, runtime)

    async def reached() -> ClusterStore:
        found = await search()
        addresses = [StoreAddress(each.host, each.port) for each in found.hosts.hosts]
        return await reached_cluster(
            location.zookeeper_url, addresses, tls, retry_s, runtime, search, found.store_id
        )

    return ConnectingStore(reached)
