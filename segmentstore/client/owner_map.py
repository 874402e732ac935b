"""OwnerMap: which host serves which container of a cluster, as a host or ZooKeeper has it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from segmentstore.client.store_addresses import StoreAddress
from segmentstore.contracts.store_hosts import FoundStore, StoreHost
from segmentstore.wire.store_commands import HostsDescribed


@dataclass(frozen=True, slots=True)
class OwnerMap:
    """As of one answer. It may be behind the truth: then the host of a container refuses."""

    store_id: str
    append_bytes_max: int
    containers: int
    """Of the whole store."""
    epoch: int
    """A map of a smaller epoch is older."""
    owners: Mapping[int, StoreAddress]
    """A container that no known host is to serve is missing."""
    hosts: tuple[StoreAddress, ...]
    """All, also those without containers."""

    @classmethod
    def of(cls, described: HostsDescribed, asked: StoreAddress) -> OwnerMap:
        """What the host at the address `asked` says."""
        owners, hosts = _addresses(described.hosts, asked)
        return cls(
            described.store_id,
            described.append_bytes_max,
            described.containers,
            described.epoch,
            owners,
            hosts,
        )

    @classmethod
    def found(cls, store: FoundStore, append_bytes_max: int) -> OwnerMap:
        """What ZooKeeper says; `append_bytes_max` is known to hosts alone."""
        owners, hosts = _addresses(store.hosts.hosts, None)
        epoch = store.hosts.epoch
        return cls(store.store_id, append_bytes_max, store.containers, epoch, owners, hosts)

    def by_host(self, containers: set[int]) -> dict[StoreAddress, set[int]]:
        """These containers by the host that is to serve them, as far as there is one."""
        found: dict[StoreAddress, set[int]] = {}
        for number in sorted(containers):
            if (address := self.owners.get(number)) is not None:
                found.setdefault(address, set()).add(number)
        return found


def _addresses(
    hosts: Iterable[StoreHost], asked: StoreAddress | None
) -> tuple[dict[int, StoreAddress], tuple[StoreAddress, ...]]:
    """The owners and all hosts. One without an address is the one that was `asked`."""
    owners: dict[int, StoreAddress] = {}
    found: dict[StoreAddress, None] = {}
    for host, port, containers in hosts:
        address = asked if asked is not None and not host else StoreAddress(host, port)
        found[address] = None
        owners.update(dict.fromkeys(containers, address))
    return owners, tuple(found)
