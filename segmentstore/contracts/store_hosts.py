"""Which process serves which container of a store, as clients are given it. Pure."""

from __future__ import annotations

from typing import NamedTuple


class StoreHost(NamedTuple):
    """A process that serves containers of a store."""

    host: str
    """With `port`: where clients reach it. Empty: the address at which it was asked."""
    port: int
    containers: tuple[int, ...]
    """That it is to serve, ascending. It may not do so yet, or not any more."""


class HostPlace(NamedTuple):
    """Where a host of a cluster is reached."""

    host_id: str
    host: str
    port: int
    controller_host: str
    controller_port: int
    """Of its Controller; 0: it has none."""


class StoreHosts(NamedTuple):
    """All of a store. A container of which no process is known is in none of them."""

    epoch: int
    """Of the assignment map: grows with each change; 0 of a store without one."""
    hosts: tuple[StoreHost, ...]


class FoundStore(NamedTuple):
    """A store whose hosts were found without asking one of them."""

    store_id: str
    containers: int
    """Of the whole store."""
    hosts: StoreHosts
