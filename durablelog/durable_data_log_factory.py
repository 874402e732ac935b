"""DurableDataLogFactory: Tier 1 of one store behind one object, wherever its logs are.

What every implementation promises (proved by
tests/contracts/durable_data_log_factory_contract.py):

- before `open` nothing outside is asked; after `close` nothing is left open;
- logs that were made are found by every later factory of the same place; those of other containers
  are apart;
- where the place is shared by many folders, it keeps the store's identity: one root is one store,
  for ever, and all factories agree on whose it is;
- a store is restored in three steps: the place is reserved, the logs are written, the store is
  published. Nobody opens it before the last step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from durablelog.durable_data_log import DurableDataLog
from durablelog.file.frame_reports import FrameReport
from segmentstore.contracts.urls import redacted


class StoreIdentity(NamedTuple):
    """What was fixed when a store was made, and is the same wherever it is opened."""

    store_id: str
    """A UUID."""
    containers: int
    tier2: str
    """An absolute URL; of a store of old it may hold a password."""
    shared_tier2: bool = False
    """Whether other stores were meant to be there: what a folder that joins goes by."""

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

    Gone through in a thread that may block. May raise TierUnavailableError, StoreInUseError,
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


@dataclass(frozen=True, slots=True)
class OrphanSearch:
    """Orphans found; nothing was changed."""

    orphans: tuple[OrphanLedger, ...] = ()
    problems: tuple[str, ...] = ()
    """What could not be understood, and was left alone; a sentence each."""


@dataclass(frozen=True, slots=True)
class OrphanDeletion:
    """What became of orphans."""

    deleted: tuple[OrphanLedger, ...] = ()
    kept: tuple[OrphanLedger, ...] = ()
    """They could not be deleted; `problems` says why."""
    problems: tuple[str, ...] = ()


class DurableDataLogFactory(ABC):
    """Tier 1 of one store. All methods but `abandon` are called on one event loop.

    The defaults are those of a place that is one folder's alone: there the folder's store.toml is
    the store's identity, and who holds the folder's lock is the only owner.
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
        """See that no container that is to be opened has a living owner, before the first one is
        taken; with `take_over` nobody is asked.

        `location` is the store's folder, whose lock is ours, and `folder` its device and inode.
        Logs made afterwards say who we are. Raises ContainerOwnedError, ConfigError,
        DataCorruptionError, TierUnavailableError.
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
        """The logs of all containers as they lie there, nobody having them open.

        Raises TierUnavailableError, ConfigError.
        """

    async def find_orphans(self, store_id: str, containers: Collection[int]) -> OrphanSearch:
        """What the logs of these containers left behind; changes nothing.

        Raises TierUnavailableError, ConfigError, DataCorruptionError.
        """
        return OrphanSearch()

    async def delete_orphans(self, store_id: str, containers: Collection[int]) -> OrphanDeletion:
        """Delete what the logs of these containers left behind, all of them ours by now.

        Raises as `find_orphans`; what cannot be deleted is told in the result.
        """
        return OrphanDeletion()

    # --- the store's identity, where the place is shared ------------------------------------------

    async def read_identity(self) -> StoreIdentity | None:
        """Whose the place is; None if it is nobody's, or keeps no identity.

        Raises NotAStoreError (reserved), DataCorruptionError, ConfigError, TierUnavailableError.
        """
        return None

    async def make_or_join_store(self, wished: StoreIdentity) -> tuple[StoreIdentity, bool]:
        """Make the place the store's that is wished for, unless it is a store's: the identity, and
        whether the store was made by this very call.

        `wished` has an id drawn for this call alone. Raises as `read_identity`.
        """
        return wished, True

    async def confirm_store(self, identity: StoreIdentity) -> bool:
        """See to it that nobody withdraws the store any more; False if somebody did: it is gone
        for good. Raises as `read_identity`.
        """
        return True

    async def withdraw_store(self, identity: StoreIdentity) -> bool:
        """Take back a store that was just made, unless another folder confirmed it; whether it is
        gone for good.
        """
        return True

    # --- a store that is restored -----------------------------------------------------------------

    @abstractmethod
    async def check_unused(self) -> None:
        """Raise ConfigError or NotAStoreError unless a new store can be made here; also
        TierUnavailableError, DataCorruptionError.
        """

    async def reserve_store(self, store_id: str) -> None:
        """Take the place for a store whose id nobody else has: until `publish_store` nobody opens
        it. Raises as `check_unused`.
        """

    async def publish_store(self, identity: StoreIdentity) -> None:
        """All logs are written and closed: the place is the store's. Raises as `check_unused`."""
