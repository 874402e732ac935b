"""WireService: a wire server for the clients of one process run, by connections in memory.

It has no port. Bounds of its tables are drawn so small that they are compacted, leave memory and
have their indexes on disk all the time.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from durablelog.catalog.key_store import KeyStore
from durablelog.catalog.key_store_records import KeyStoreIdentity
from durablelog.catalog.memory_key_store import MemoryKeyStore
from recovery.harness.simulation.memory_links import LinkWatch, MemoryLink
from recovery.harness.simulation.wire_connections import MemoryConnection
from segmentstore.contracts.errors import SegmentError
from segmentstore.server.server_context import ServerContext
from segmentstore.server.wire_server import WireServer
from segmentstore.tables.open_tables import TableLimits
from segmentstore.tables.table_service import TableService

if TYPE_CHECKING:
    from segmentstore.service import SegmentStore
    from segmentstore.store_parts import StoreParts

_TURNS = 3
"""Of the loop, in which a request that has come is begun."""


class CountedTables(TableService):
    """Tables that know whether changes of them are under way: a client whose connection was cut
    cannot.
    """

    def __init__(
        self,
        store: SegmentStore,
        make_key_store: Callable[[], KeyStore] | None,
        limits: TableLimits,
    ) -> None:
        super().__init__(store, make_key_store, limits)
        self._changes = 0
        self._in_doubt = False
        self._quiet = asyncio.Event()
        self._quiet.set()

    async def update(
        self,
        name: str,
        entries: Sequence[tuple[bytes, int, bytes]],
        expected_length: int | None = None,
    ) -> list[int]:
        with self._counted():
            return await super().update(name, entries, expected_length)

    async def remove(
        self,
        name: str,
        keys: Sequence[tuple[bytes, int]],
        expected_length: int | None = None,
    ) -> None:
        with self._counted():
            await super().remove(name, keys, expected_length)

    async def settled(self) -> bool:
        """Wait until no change is under way; False if one since the last call may still take
        effect.
        """
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        await self._quiet.wait()
        in_doubt, self._in_doubt = self._in_doubt, False
        return not in_doubt

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self._changes += 1
        self._quiet.clear()
        try:
            yield
        except SegmentError:
            raise  # refused
        except BaseException:
            self._in_doubt = True
            raise
        finally:
            self._changes -= 1
            if not self._changes:
                self._quiet.set()


class WireService:
    """Made for a process run of a store, whose clients share it."""

    def __init__(self, store: SegmentStore, rng: random.Random) -> None:
        parts = store._parts  # noqa: SLF001 - a server is made from what the opener has
        limits = TableLimits(
            tables_max=rng.choice((1, 1000)),
            memory_index_bytes_max=rng.choice((600, 1 << 22)),
            dead_bytes_min=rng.choice((150, 600, 1 << 20)),
        )
        on_disk = _key_stores(parts) if rng.random() < 0.5 else None
        self.tables = CountedTables(store, on_disk, limits)
        self._context = ServerContext(store, self.tables, parts.runtime)
        self._server = WireServer(self._context)
        self._connections: list[MemoryConnection | MemoryLink] = []

    def connect(self, rng: random.Random) -> MemoryConnection:
        """A connection, which mostly is cut at some byte of one direction."""
        connection = MemoryConnection(self._server.accept, *_cuts(rng, 3000, 600))
        self._keep(connection)
        return connection

    def link(self, client: asyncio.Protocol, watch: LinkWatch, rng: random.Random) -> MemoryLink:
        """A client's connection, which mostly is cut likewise."""
        accept = self._server.accept if rng.random() < 0.5 else self._server.accept_local
        delay_s = rng.choice((0.0, 0.0, 0.002))
        link = MemoryLink(client, accept(), *_cuts(rng, 6000, 2500), delay_s, watch)
        self._keep(link)
        return link

    def _keep(self, connection: MemoryConnection | MemoryLink) -> None:
        self._connections = [each for each in self._connections if not each.is_cut]
        self._connections.append(connection)

    async def close(self) -> None:
        """Cut all connections, and end what goes on without them."""
        for connection in self._connections:
            connection.cut()
        await self._server.no_connections()
        await self.tables.close()
        await self._context.finish()


def _cuts(rng: random.Random, sent: int, received: int) -> tuple[int | None, int | None]:
    """The bytes of each direction behind which a connection is cut: of one, of the other, or of
    neither.
    """
    kind = rng.random()
    sent_max = rng.randrange(1, sent) if kind < 0.35 else None
    return sent_max, rng.randrange(1, received) if 0.35 <= kind < 0.7 else None


def _key_stores(parts: StoreParts) -> Callable[[], KeyStore]:
    identity = KeyStoreIdentity(parts.store_id, 0)
    return lambda: MemoryKeyStore(f"{parts.location}/tables", identity, parts.runtime)
