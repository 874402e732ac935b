"""The clients of a store on BookKeeper: one of ZooKeeper and one of BookKeeper, opened with the
secrets and settings the operator gives.

Rule of this file: kazoo and the gateway are imported when such a store is opened, and not before.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

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
from durablelog.bookkeeper.log_options import OPEN_TIMEOUT_S
from durablelog.bookkeeper.metadata_node import (
    MetadataNodes,
    NodeConflictError,
    NodeRefusedError,
    NodeUnavailableError,
)
from durablelog.bookkeeper.waiting import FIRST_S, MOST_S
from segmentstore.contracts.backoff import Backoff
from segmentstore.contracts.errors import ConfigError, TierUnavailableError
from segmentstore.contracts.extras import require_extra
from segmentstore.contracts.owned_tasks import own_task
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.waiting import outlast

if TYPE_CHECKING:
    from durablelog.bookkeeper.gateway.gateway_ledger_store import GatewayLedgerStore

_SECRET_BYTES_MAX: Final = 4096


class BookKeeperClients(NamedTuple):
    """What a store on BookKeeper speaks to its services by, opened."""

    ledgers: LedgerStore
    nodes: MetadataNodes

    async def close(self) -> None:
        """Release both; neither's failure keeps the other open."""
        try:
            await self.ledgers.close()
        finally:
            await self.nodes.close()

    def abandon(self) -> None:
        """Release both for an owner whose event loop is closed. Blocks; on any thread."""
        try:
            self.nodes.abandon()
        finally:
            self.ledgers.abandon()


OpenClients = Callable[
    [BookKeeperLocation, Mapping[str, str], Runtime], Coroutine[Any, Any, BookKeeperClients]
]
"""Connects to the services of a location: `open_clients`, or a test's services in memory."""


async def open_nodes(
    location: BookKeeperLocation, environment: Mapping[str, str], runtime: Runtime
) -> MetadataNodes:
    """A session with the location's ZooKeeper, begun.

    Raises ConfigError (a secret that cannot be read), MissingExtraError.
    """
    require_extra("bookkeeper", "a log on BookKeeper")
    from durablelog.bookkeeper.zookeeper_encryption import (  # noqa: PLC0415
        encryption_context,
        encryption_of,
    )
    from durablelog.bookkeeper.zookeeper_nodes import (  # noqa: PLC0415
        ZookeeperNodes,
        ZookeeperSettings,
    )

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
    from durablelog.bookkeeper.gateway.gateway_settings import ADDRESS_VARIABLE  # noqa: PLC0415

    password = await ledger_password(location, environment, runtime)
    settings = GatewaySettings(
        metadata_uri=location.metadata_uri,
        password=password,
        attach=environment.get(ADDRESS_VARIABLE) or location.gateway,
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
    """As `_ledgers_connected`, unless ZooKeeper refuses this process meanwhile: BookKeeper's client
    takes that for an absence.
    """
    connecting = own_task(_ledgers_connected(ledgers, runtime), name="connect to bookkeeper")
    reading = own_task(nodes.read(path), name="read from zookeeper")
    try:
        await asyncio.wait([connecting, reading], return_when=asyncio.FIRST_COMPLETED)
        if reading.done() and isinstance(refused := reading.exception(), NodeRefusedError):
            raise ConfigError("tier1", str(refused)) from refused
        await connecting
    finally:
        for task in (connecting, reading):
            task.cancel()
        await asyncio.wait([connecting, reading])
        if not reading.cancelled():
            # That ZooKeeper does not answer is reported by the next call that needs it.
            reading.exception()


async def _ledgers_connected(ledgers: GatewayLedgerStore, runtime: Runtime) -> None:
    """Connect; again, if what failed may pass, for as long as an opening is patient.

    Raises LedgerError, ConfigError.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + OPEN_TIMEOUT_S
    backoff = Backoff(runtime.random, min_s=FIRST_S, max_s=MOST_S)
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
