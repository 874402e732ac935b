"""Tier 1 on BookKeeper as a whole store has it: one client of each service for all containers, and
the store's identity.

Rules of this file:

- kazoo and the gateway are imported when a store on BookKeeper is opened, and not before;
- what was fixed when the store was made stands in its root node, and there alone is right: a
  folder's store.toml that says otherwise, or an option, is refused;
- a store's folder is one process's working place. That it is new says nothing about the store: only
  who made the root node has made the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from durablelog.bookkeeper.bookkeeper_location import (
    PASSWORD_VARIABLE,
    ZOOKEEPER_AUTH_VARIABLE,
    BookKeeperLocation,
)
from durablelog.bookkeeper.client_settings import (
    FILE_BYTES_MAX,
    FILE_VARIABLE,
    NONE,
    SETTING,
    ClientSettings,
    parse_client_settings,
)
from durablelog.bookkeeper.ledger_store import LedgerError, LedgerStore
from durablelog.bookkeeper.log_options import OPEN_PATIENCE_S
from durablelog.bookkeeper.metadata_node import (
    MetadataNodes,
    NodeConflictError,
    NodeRefusedError,
    NodeUnavailableError,
)
from durablelog.bookkeeper.orphan_ledgers import read_record
from durablelog.bookkeeper.store_node import (
    StoreIdentity,
    container_path,
    containers_path,
    found_or_join,
    owners_path,
    pin,
    read_identity,
    unmake,
)
from durablelog.bookkeeper.waiting import Backoff, HealthNotes, Waiting
from durablelog.durable_data_log import DurableDataLog
from segmentstore.config import FILE_NAME, StoreConfig, StoreFile
from segmentstore.contracts.errors import (
    ConfigError,
    DataCorruptionError,
    NotAStoreError,
    TierUnavailableError,
)
from segmentstore.contracts.extras import require_extra
from segmentstore.contracts.owned_tasks import own_task
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.urls import redacted
from segmentstore.contracts.waiting import outlast
from tier2.credentials import stands_for

if TYPE_CHECKING:
    from durablelog.bookkeeper.gateway.gateway_ledger_store import GatewayLedgerStore
    from durablelog.bookkeeper.owner_presence import OwnerPresence

TIER1_PREFIX: Final = "tier1: "
_SECRET_BYTES_MAX: Final = 4096


class BookKeeperClients(NamedTuple):
    """What a store on BookKeeper speaks to its services by, opened."""

    ledgers: LedgerStore
    nodes: MetadataNodes

    async def close(self) -> None:
        """Let go of both; neither's failure keeps the other open."""
        try:
            await self.ledgers.close()
        finally:
            await self.nodes.close()

    def abandon(self) -> None:
        """Let go of both for an owner whose event loop is closed. Blocks; on any thread."""
        try:
            self.nodes.abandon()
        finally:
            self.ledgers.abandon()


async def open_nodes(
    location: BookKeeperLocation, environment: Mapping[str, str], runtime: Runtime
) -> MetadataNodes:
    """A session with the location's ZooKeeper, begun.

    Raises ConfigError (a secret that cannot be read), MissingExtraError.
    """
    require_extra("bookkeeper", "a log on BookKeeper")
    from durablelog.bookkeeper.zookeeper_encryption import encryption_context, encryption_of  # noqa: PLC0415
    from durablelog.bookkeeper.zookeeper_nodes import ZookeeperNodes, ZookeeperSettings  # noqa: PLC0415

    credentials = await _secret(
        "zookeeper_auth_file",
        location.zookeeper_auth_file,
        environment.get(ZOOKEEPER_AUTH_VARIABLE),
        runtime,
    )
    if credentials is not None and not all(credentials.partition(":")):
        raise ConfigError("tier1", "ZooKeeper's credentials are not user:password")
    if credentials is None and location.acl == "creator":
        detail = (
            "acl=creator wants credentials: name zookeeper_auth_file, or set "
            f"{ZOOKEEPER_AUTH_VARIABLE}"
        )
        raise ConfigError("tier1", detail)
    if credentials is None and location.zookeeper_scheme == "sasl":
        detail = (
            "zookeeper_scheme=sasl wants credentials: name zookeeper_auth_file, or set "
            f"{ZOOKEEPER_AUTH_VARIABLE}"
        )
        raise ConfigError("tier1", detail)
    encryption = encryption_of((await client_settings(location, environment, runtime)).system)
    context = None
    if encryption is not None:
        executor = runtime.executor("secrets", 1)
        try:
            context = await asyncio.get_running_loop().run_in_executor(
                executor, encryption_context, encryption
            )
        finally:
            executor.shutdown(wait=False)
    nodes = ZookeeperNodes(
        ZookeeperSettings(
            hosts=location.hosts,
            session_timeout_s=location.session_timeout_s,
            deadline_s=location.session_timeout_s * 1.5,
            credentials=credentials,
            creator_only=location.acl == "creator",
            sasl=location.zookeeper_scheme == "sasl",
            encryption=context,
        ),
        runtime,
    )
    await nodes.open()
    return nodes


async def open_clients(
    location: BookKeeperLocation, environment: Mapping[str, str], runtime: Runtime
) -> BookKeeperClients:
    """Production's clients.

    Raises ConfigError (what is missing, or a secret that cannot be read), MissingExtraError,
    TierUnavailableError.
    """
    require_extra("bookkeeper", "a log on BookKeeper")
    from durablelog.bookkeeper.gateway.gateway_ledger_store import (  # noqa: PLC0415
        GatewayLedgerStore,
        GatewaySettings,
    )

    password = await ledger_password(location, environment, runtime)
    settings = GatewaySettings(
        metadata_uri=location.metadata_uri,
        password=password,
        attach=location.gateway,
        given=await client_settings(location, environment, runtime),
    )
    ledgers = GatewayLedgerStore(settings, runtime)
    nodes = await open_nodes(location, environment, runtime)
    try:
        await _connected(ledgers, nodes, location.path, runtime)
    except BaseException as error:
        clients, trouble = BookKeeperClients(ledgers, nodes), nodes.health()
        await outlast(own_task(clients.close(), name="close clients"))
        if isinstance(error, LedgerError):
            raise TierUnavailableError(
                "tier1", "; ".join(filter(None, (str(error), trouble)))
            ) from error
        raise
    return BookKeeperClients(ledgers, nodes)


async def _connected(
    ledgers: GatewayLedgerStore, nodes: MetadataNodes, path: str, runtime: Runtime
) -> None:
    """As `_ledgers_connected`, unless ZooKeeper refuses us meanwhile: BookKeeper's client takes
    that for an absence.
    """
    connecting = own_task(_ledgers_connected(ledgers, runtime), name="connect to bookkeeper")
    looking = own_task(nodes.read(path), name="look at zookeeper")
    try:
        await asyncio.wait([connecting, looking], return_when=asyncio.FIRST_COMPLETED)
        if looking.done() and isinstance(refused := looking.exception(), NodeRefusedError):
            raise ConfigError("tier1", str(refused)) from refused
        await connecting
    finally:
        for task in (connecting, looking):
            task.cancel()
        await asyncio.wait([connecting, looking])
        if not looking.cancelled():
            looking.exception()  # that ZooKeeper does not answer is told by whoever needs it next


async def _ledgers_connected(ledgers: GatewayLedgerStore, runtime: Runtime) -> None:
    """Connect; again, if what failed may pass, for as long as an opening is patient.

    Raises LedgerError, ConfigError.
    """
    loop = asyncio.get_running_loop()
    deadline, backoff = loop.time() + OPEN_PATIENCE_S, Backoff(runtime.random)
    while True:
        try:
            return await ledgers.open()
        except LedgerError:
            pause_s = backoff.next_s()
            if loop.time() + pause_s > deadline:
                raise
        await asyncio.sleep(pause_s)


async def ledger_password(
    location: BookKeeperLocation, environment: Mapping[str, str], runtime: Runtime
) -> bytes:
    """What ledgers are made and opened with; empty for none.

    Raises ConfigError (it cannot be read).
    """
    given = environment.get(PASSWORD_VARIABLE)
    return (await _secret("password_file", location.password_file, given, runtime) or "").encode()


async def client_settings(
    location: BookKeeperLocation, environment: Mapping[str, str], runtime: Runtime
) -> ClientSettings:
    """What the operator gives BookKeeper's client.

    Raises ConfigError (the file cannot be read, or sets what is ours).
    """
    path = location.client_settings or environment.get(FILE_VARIABLE)
    if not path:
        return NONE
    text = await _text(SETTING, path, FILE_BYTES_MAX, runtime)
    return parse_client_settings(text, path)


class SharedTier1:
    """Tier 1 of one open store, shared by its containers; closed after them."""

    def __init__(
        self, location: BookKeeperLocation, clients: BookKeeperClients, runtime: Runtime
    ) -> None:
        self.location = location
        self.clients = clients
        self._runtime = runtime
        self._presence: OwnerPresence | None = None

    async def agree(
        self, file: StoreFile | None, wished: StoreIdentity
    ) -> tuple[StoreIdentity, bool]:
        """Whose the root node is, making it if this may: the store's identity, and whether it was
        made by this very call.

        `file` is the folder's store.toml, None for a new folder, which makes the store or joins it;
        `wished` has an id drawn for this call. Raises ConfigError (the folder is of another store),
        DataCorruptionError (the node is gone), TierUnavailableError.
        """
        if file is not None:
            return await self.identity(file), False
        async with translated():
            return await found_or_join(self.clients.nodes, self.location.path, wished)

    async def identity(self, file: StoreFile | None) -> StoreIdentity:
        """Whose the root node is, which is left as it is; `file` is the folder's store.toml, None
        where there is no folder.

        Raises NotAStoreError (no folder, and no store there), and what `agree` raises.
        """
        path = self.location.path
        async with translated():
            identity = await read_identity(self.clients.nodes, path)
        if file is None:
            if identity is None:
                raise NotAStoreError(self.location.url, "its node is absent, or empty")
            return identity
        if identity is None:
            detail = (
                f"it is gone, or empty, and {FILE_NAME} says that store {file.store_id} was "
                "made: nothing was changed"
            )
            raise DataCorruptionError(f"node {path} of {self.location.url}", detail)
        if identity.store_id != file.store_id:
            detail = (
                f"the folder is of store {file.store_id}, and {self.location.url} holds "
                f"store {identity.store_id}"
            )
            raise ConfigError(FILE_NAME, detail)
        containers, tier2 = file.settings["containers"], file.settings["tier2"]
        if containers != identity.containers:
            raise ConfigError("containers", _differs(containers, identity.containers))
        if not stands_for(tier2, identity.tier2):
            raise ConfigError("tier2", _differs(redacted(str(tier2)), redacted(identity.tier2)))
        return identity

    async def has_logs(self) -> bool:
        """Whether any container was ever opened."""
        async with translated():
            return bool(await self.clients.nodes.children(containers_path(self.location.path)))

    async def pin(self, identity: StoreIdentity) -> bool:
        """See to it that nobody takes back what `agree` found; False if somebody did: that store
        is gone for good.

        Raises as `agree`.
        """
        async with translated():
            return await pin(self.clients.nodes, self.location.path, identity)

    def taken_back(self) -> TierUnavailableError:
        """What is said of a store that is gone for good."""
        detail = (
            "the store was taken back by who was making it, for its tier2 failed the "
            "check: open it again"
        )
        return TierUnavailableError("tier1", f"{self.location.url}: {detail}")

    async def unmake(self, identity: StoreIdentity) -> bool:
        """Take back what `agree` made; whether that store is gone for good."""
        try:
            return await unmake(self.clients.nodes, self.location.path, identity)
        except (NodeUnavailableError, NodeRefusedError):
            # It stays, and is joined by the next who opens: no harm, for it has no containers.
            return False

    async def ask_owners(self, containers: Iterable[int], folder: str, *, take_over: bool) -> None:
        """See that no container that is to be opened has a living owner: all of them, before the
        first one is taken.

        `folder` is the `folder_name` of the store's here, whose lock is ours. Logs made afterwards
        say who we are. Raises ContainerOwnedError, ConfigError, DataCorruptionError,
        TierUnavailableError.
        """
        from durablelog.bookkeeper.owner_presence import OwnerPresence  # noqa: PLC0415

        presence = self._presence = OwnerPresence(
            self.clients.nodes,
            owners_path(self.location.path),
            self._runtime,
            location=self.location.url,
            folder=folder,
            session_timeout_s=self.location.session_timeout_s,
            take_over=take_over,
        )
        if take_over:
            return
        waiting = Waiting(
            self._runtime.random,
            HealthNotes(),
            "opening",
            deadline=asyncio.get_running_loop().time() + OPEN_PATIENCE_S,
        )
        async with translated():
            for container_id in containers:
                record = await waiting.for_node(
                    lambda number=container_id: read_record(
                        self.clients.nodes, self.location.path, number
                    )  # type: ignore[misc]
                )
                if record is not None:
                    await waiting.for_node(lambda found=record: presence.ask(found))  # type: ignore[misc]

    def log(self, container_id: int, store_id: str, config: StoreConfig) -> DurableDataLog:
        """The log of one container, not opened yet."""
        from durablelog.bookkeeper.bookkeeper_log import BookKeeperLog  # noqa: PLC0415
        from durablelog.bookkeeper.log_options import BookKeeperLogOptions  # noqa: PLC0415

        return BookKeeperLog(
            container_id,
            self._runtime,
            self.clients.ledgers,
            self.clients.nodes,
            container_path(self.location.path, container_id),
            store_id=store_id,
            options=BookKeeperLogOptions.at(self.location),
            payload_bytes_max=config.frame_bytes_max,
            presence=self._presence,
        )

    def log_view(self, container_id: int, store_id: str) -> DurableDataLog:
        """The log of one container as it stands, to be read without owning it; not opened yet."""
        from durablelog.bookkeeper.bookkeeper_log_view import BookKeeperLogView  # noqa: PLC0415
        from durablelog.bookkeeper.log_options import BookKeeperLogOptions  # noqa: PLC0415

        return BookKeeperLogView(
            container_id,
            self._runtime,
            self.clients.ledgers,
            self.clients.nodes,
            container_path(self.location.path, container_id),
            store_id=store_id,
            options=BookKeeperLogOptions.at(self.location),
        )

    def health(self) -> list[str]:
        """What is wrong with the way to the services, a sentence each."""
        findings = (self.clients.nodes.health(), self.clients.ledgers.health())
        return [f"{TIER1_PREFIX}{finding}" for finding in findings if finding is not None]

    async def close(self) -> None:
        """Let go of the services. Idempotent."""
        await self.clients.close()


def _differs(here: object, there: object) -> str:
    return f"{FILE_NAME} says {here!r}, but the store was made with {there!r}"


@asynccontextmanager
async def translated() -> AsyncIterator[None]:
    """The errors of nodes and ledgers as callers know them."""
    try:
        yield
    except (NodeUnavailableError, LedgerError, NodeConflictError) as error:
        raise TierUnavailableError("tier1", str(error)) from error
    except NodeRefusedError as error:
        raise ConfigError("tier1", str(error)) from error


async def _secret(key: str, path: str | None, given: str | None, runtime: Runtime) -> str | None:
    """The first line of a file, or what the environment gives.

    Raises ConfigError, which says nothing of what was read.
    """
    if path is None:
        return given or None
    lines = (await _text(key, path, _SECRET_BYTES_MAX, runtime)).splitlines()
    if not lines or not lines[0]:
        raise ConfigError(
            "tier1", f"{key}: {path} does not begin with a line of 1 to {_SECRET_BYTES_MAX} bytes"
        )
    return lines[0]


async def _text(key: str, path: str, bytes_max: int, runtime: Runtime) -> str:
    """A small file. Raises ConfigError, which says nothing of what was read."""
    executor = runtime.executor("secrets", 1)
    try:
        data = await asyncio.get_running_loop().run_in_executor(
            executor, _read, path, bytes_max, runtime
        )
    except OSError as error:
        raise ConfigError("tier1", f"{key}: {path}: {error.strerror or error}") from None
    finally:
        executor.shutdown(wait=False)
    if len(data) > bytes_max:
        raise ConfigError("tier1", f"{key}: {path} does not hold 1 to {bytes_max} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ConfigError("tier1", f"{key}: {path} is not UTF-8 text") from None


def _read(path: str, bytes_max: int, runtime: Runtime) -> bytes:
    file = runtime.disk.open(path)
    try:
        return file.pread(0, min(file.size(), bytes_max + 1))
    finally:
        file.close()
