"""DurableDataLogFactory: Tier 1 of one store behind one object, wherever its logs are.

What every implementation promises (proved by
tests/contracts/durable_data_log_factory_contract.py):

- a factory contacts no service before `open`, and holds no connection after `close`;
- a later factory of the same place finds every log that was written; the logs of different
  containers are separate;
- a place that many folders share keeps the store's identity. One place is one store, for ever, and
  all factories agree on its identity;
- a restore has three steps: reserve the place, write the logs, publish the store. No process opens
  the store before the last step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from durablelog.durable_data_log import DurableDataLog
from segmentstore.contracts.urls import redacted

if TYPE_CHECKING:
    from durablelog.bookkeeper.metadata_node import MetadataNodes
    from durablelog.file.frame_reports import FrameReport


class StoreIdentity(NamedTuple):
    """What was fixed when a store was made, and is the same wherever it is opened."""

    store_id: str
    """A UUID."""
    containers: int
    tier2: str
    """An absolute URL; that of an old store may hold a password."""
    shared_tier2: bool = False
    """Other stores may use the same Tier 2; a folder that joins the store takes this over."""

    def __repr__(self) -> str:
        return (
            f"StoreIdentity({self.store_id}, containers={self.containers}, "
            f"tier2={redacted(self.tier2)!r})"
        )


class LogOptions(NamedTuple):
    """How a log is written; each implementation takes what applies to it."""

    payload_bytes_max: int
    """The largest frame."""
    file_bytes: int
    """Size of a file, where logs are files."""
    epoch_min: int = 1
    """The first owner's epoch of a log that is new."""


class RemoteLog(NamedTuple):
    """A log that is not files in a folder, to be read as it was left."""

    frames: Callable[[], Iterator[FrameReport]]
    """As `read_only_frames` gives them; none of a log that was never written to.

    Processed in a thread that may block. May raise TierUnavailableError, StoreInUseError,
    DataCorruptionError and ConfigError.
    """
    unit: str
    """What a report's position counts."""


StoredLogs = Mapping[int, str] | Mapping[int, RemoteLog]
"""By container: the folder of a log in files, or what gives a log's frames."""


class OrphanLedger(NamedTuple):
    """A ledger of the store that no log lists."""

    container_id: int
    ledger_id: int
    epoch: int
    length: int | None
    """Bytes; None while it is open."""


class OrphanSearch(NamedTuple):
    """The result of a search, which changes nothing."""

    orphans: tuple[OrphanLedger, ...] = ()
    problems: tuple[str, ...] = ()
    """Ledgers that were skipped, and why; a sentence each."""


class OrphanDeletion(NamedTuple):
    """The result of a deletion."""

    deleted: tuple[OrphanLedger, ...] = ()
    kept: tuple[OrphanLedger, ...] = ()
    """Their deletion failed; `problems` says why."""
    problems: tuple[str, ...] = ()


class Coordination(NamedTuple):
    """Nodes that all processes of a store share."""

    nodes: MetadataNodes
    root: str
    """Path of the store's own node."""


class DurableDataLogFactory(ABC):
    """Tier 1 of one store. All methods but `abandon` are called on one event loop.

    The defaults are those of a place that belongs to one folder. The folder's store.toml is the
    store's identity there, and the process that holds the folder's lock is the only owner.
    """

    is_shared: ClassVar[bool] = False
    """Many folders and processes open the same logs: the place keeps the store's identity, and a
    folder is one process's working place.
    """
    is_durable: ClassVar[bool] = True
    """The logs outlive the process that writes them."""
    place: ClassVar[str]
    """Where such logs are, as messages say it: "in files"."""

    @property
    @abstractmethod
    def tier1(self) -> str:
        """The setting that names this place."""

    @property
    @abstractmethod
    def url(self) -> str:
        """Where the logs are, for messages; without secrets."""

    async def open(self) -> None:
        """Connect to the services the logs need.

        Raises ConfigError, MissingExtraError, TierUnavailableError; then nothing is left open.
        """

    async def close(self) -> None:
        """Disconnect; all logs are closed before. Idempotent."""

    def abandon(self) -> None:
        """Disconnect for an owner whose event loop is closed. From any thread; does not block."""

    def health(self) -> list[str]:
        """What is wrong with the way to the services, a sentence each."""
        return []

    # --- the logs ---------------------------------------------------------------------------------

    @abstractmethod
    async def has_logs(self) -> bool:
        """Whether any container was ever opened. Raises TierUnavailableError."""

    async def check_owners(
        self,
        containers: Collection[int],
        location: str,
        folder: tuple[int, int],
        *,
        take_over: bool,
    ) -> None:
        """Check that no container that is to be opened has a living owner, before the first one
        is opened; `take_over` skips the check.

        `location` is the store's folder, which the caller has locked, and `folder` its device and
        inode. Logs made afterwards announce this process as their owner.

        Raises ContainerOwnedError, ConfigError, DataCorruptionError, TierUnavailableError.
        """

    @abstractmethod
    def make_log(self, container_id: int, store_id: str, options: LogOptions) -> DurableDataLog:
        """The log of one container, not opened yet."""

    @abstractmethod
    def make_view(self, container_id: int, store_id: str) -> DurableDataLog:
        """The log of one container as it stands, to be read without owning it; not opened yet.

        Raises ConfigError: such a log cannot be read by another process.
        """

    @abstractmethod
    async def stored_logs(self, containers: int) -> StoredLogs:
        """The logs of all containers for `check_store`; no process has them open.

        Raises TierUnavailableError, ConfigError.
        """

    async def find_orphans(self, store_id: str, containers: Collection[int]) -> OrphanSearch:
        """Ledgers of these containers that no log lists.

        Raises TierUnavailableError, ConfigError, DataCorruptionError.
        """
        return OrphanSearch()

    async def delete_orphans(self, store_id: str, containers: Collection[int]) -> OrphanDeletion:
        """Delete ledgers of these containers that no log lists; the caller owns the containers.

        Raises as `find_orphans`; the result lists what could not be deleted.
        """
        return OrphanDeletion()

    def coordination(self) -> Coordination | None:
        """Nodes on which the processes of this store agree what each serves; None where one process
        has all of it. Open as long as the factory is.
        """
        return None

    # --- the store's identity, where the place is shared ------------------------------------------

    async def read_identity(self) -> StoreIdentity | None:
        """The identity that the place keeps; None if it has none.

        Raises NotAStoreError (reserved), DataCorruptionError, ConfigError, TierUnavailableError.
        """
        return None

    async def make_or_join_store(self, wished: StoreIdentity) -> tuple[StoreIdentity, bool]:
        """Make the place the store `wished`, or join the store that it is already. Returns the
        identity, and whether this call made the store.

        `wished` has an id that was drawn for this call. Raises as `read_identity`.
        """
        return wished, True

    async def confirm_store(self, identity: StoreIdentity) -> bool:
        """Prevent a withdrawal of the store. False if the store was withdrawn before: then it is
        deleted for good. Raises as `read_identity`.
        """
        return True

    async def withdraw_store(self, identity: StoreIdentity) -> bool:
        """Remove a store that this factory has just made, unless another folder confirmed it.
        True if it is deleted for good.
        """
        return True

    # --- a store that is restored -----------------------------------------------------------------

    @abstractmethod
    async def check_unused(self) -> None:
        """Raise ConfigError or NotAStoreError unless a new store can be made here; also
        TierUnavailableError, DataCorruptionError.
        """

    async def reserve_store(self, store_id: str) -> None:
        """Reserve the place for a store with a new id: no process opens it before
        `publish_store`. Raises as `check_unused`.
        """

    async def publish_store(self, identity: StoreIdentity) -> None:
        """Make the reserved place the store; all its logs are written and closed.

        Raises as `check_unused`.
        """
