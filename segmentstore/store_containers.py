"""StoreContainers: which containers an open store serves in this process, and how that changes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from segmentstore.contracts.errors import ConfigError, StoreClosedError
from segmentstore.store_parts import StoreParts

if TYPE_CHECKING:
    from segmentstore.contracts.store_hosts import StoreHosts


class StoreContainers(ABC):
    """The part of `SegmentStore` that starts and stops containers.

    An opening starts those that `serve` names. Segments of the others are refused with
    ContainerNotServedError; calls for the whole store are about those that serve.
    """

    _parts: StoreParts

    @abstractmethod
    def _check_loop(self) -> None:
        """Raise unless this is the store's loop."""

    @property
    def served(self) -> list[int]:
        """Numbers of the containers that serve here now, ascending. O(containers)."""
        return self._parts.registry.served

    async def fetch_hosts(self) -> StoreHosts:
        """Which process serves which container, for clients; outside a cluster this one, alone."""
        self._check_loop()
        if self._parts.cluster_hosts is not None:
            return await self._parts.cluster_hosts()
        # Not at the top: a caller that asks alone needs it.
        from segmentstore.contracts.store_hosts import StoreHost, StoreHosts  # noqa: PLC0415

        return StoreHosts(0, (StoreHost("", 0, tuple(self.served)),))

    async def start_container(self, number: int) -> None:
        """Start one of the store's containers here; returns when it serves, at once if it does.

        On BookKeeper that fences its owner; one that is alive elsewhere only with `take_over`, or
        ContainerOwnedError. At most two start at one time. A container that has failed is started
        again by this, and by nothing else. If it is being stopped, it starts behind that. Callers
        that ask for the same wait for one start. Cancelled, it ends when what it had opened is
        released, unless others wait for it, too.

        Raises what the replay of the log meets (DataCorruptionError, TierUnavailableError,
        NotPrimaryError): then the container has failed, as `stats()` and `health` say; its
        neighbours have not. Also ContainerNotServedError if `stop_container` came in between,
        StoreClosedError, InvalidArgumentError, and ConfigError for a host of a cluster, where the
        assignment map says what is served. Costs the replay of its log.
        """
        self._check_loop()
        self._check_may_change()
        await self._parts.registry.start(number)

    async def stop_container(self, number: int) -> None:
        """Stop a container here; returns when all of it is released, at once if it is stopped.

        What was taken becomes durable and is acknowledged; uploads on their way end, within 5 s, as
        before a close. Later calls for its segments, and reads that wait at a tail, get
        ContainerNotServedError. Sessions and readers of it stay ended, also when it is started
        again. Its start, if that is on its way, is cancelled. One that has failed is stopped, and
        reported no more. Cancelled, the stop goes on.

        Raises ContainerStoppedError if a failure prevented it: `cause` has that, and what was taken
        may not be durable. Also StoreClosedError, InvalidArgumentError, and ConfigError for a host
        of a cluster.
        """
        self._check_loop()
        self._check_may_change()
        await self._parts.registry.stop(number)

    async def drain(self) -> list[int]:
        """Have the other hosts of the cluster take over all containers of this one, one by one.

        For an end of the process that clients hardly notice. It stays registered, is given none
        any more until it is started again, and answers health and other containers' addresses.
        Returns the numbers of those that it still serves: because no other host may take them, or
        ZooKeeper does not answer. Cancelled, it drains on. Raises ConfigError for a store that is
        no host, StoreClosedError.
        """
        self._check_loop()
        if self._parts.closing is not None:
            raise StoreClosedError
        if self._parts.cluster_drain is None:
            raise ConfigError("serve", "only a host of a cluster has others to take over from it")
        await self._parts.cluster_drain()
        return self.served

    def _check_may_change(self) -> None:
        if self._parts.closing is not None:
            raise StoreClosedError
        if self._parts.config.joins_cluster:
            detail = "the assignment map says what is served: pin a container, or drain a host"
            raise ConfigError("serve", detail)
