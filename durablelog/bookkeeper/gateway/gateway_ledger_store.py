"""GatewayLedgerStore: the LedgerStore that speaks to a real cluster, through BookKeeper's own
client in a Java process.

Rules of this file:

- what the gateway says is passed on as it is: which code means what is decided by the log;
- every call ends: the gateway receives its deadline, and is not waited for much longer;
- a gateway that says nothing to a call for longer than that hangs, and is given up: the next call
  starts another;
- nothing here blocks the loop, and closing never waits for a gateway that hangs;
- a gateway that died takes its writers with it; the next call starts another. Only that call
  waits for it.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Final

from durablelog.bookkeeper.failure_codes import LedgerCall, Reaction, reaction
from durablelog.bookkeeper.gateway import gateway_protocol
from durablelog.bookkeeper.gateway.add_connection import AddConnection, GatewayWriter
from durablelog.bookkeeper.gateway.bookie_watch import BookieWatch
from durablelog.bookkeeper.gateway.entry_reading import read_entries
from durablelog.bookkeeper.gateway.gateway_control import ANSWER_S, GatewayHangsError
from durablelog.bookkeeper.gateway.gateway_protocol import custom_text, parse_description
from durablelog.bookkeeper.gateway.gateway_settings import (
    GATEWAY_CLOSED,
    METADATA_SERVICE,
    SETTING,
    TIMEOUT,
    GatewaySettings,
)
from durablelog.bookkeeper.gateway.handshake import (
    HungUpError,
    NoListenerError,
    NoSocketError,
    handshake,
)
from durablelog.bookkeeper.gateway.shared_gateway import AttachedGateway, Gateway, acquire_own
from durablelog.bookkeeper.ledger_store import (
    BookieFigures,
    LedgerDescription,
    LedgerError,
    LedgerStore,
    LedgerWriter,
    Replication,
)
from segmentstore.contracts.errors import ConfigError, describe
from segmentstore.contracts.owned_tasks import own_task
from segmentstore.contracts.runtime import Runtime

__all__ = ["GatewayLedgerStore", "GatewaySettings"]

CONNECT_S: Final = 20.0
CONNECT_GIVEN_S: Final = 60.0
"""With settings of the operator's: providers of TLS check themselves for seconds of CPU."""
CREATE_S: Final = 15.0
RECOVER_S: Final = 30.0
"""A bookie that hangs costs a recovery a second and a half, one that is being forgotten by
ZooKeeper ten.
"""
DESCRIBE_S: Final = 10.0
DELETE_S: Final = 10.0
LIST_S: Final = 60.0
CLOSE_S: Final = 5.0

_THREADS: Final = 8
_NAMED_MAX: Final = 10
_LATE_S: Final = 2.0
"""The gateway keeps the time itself; that much later it is taken to hang."""
_RELEASES_S: Final = 10.0
"""Ending a gateway of ours takes 3 s at most, even if it hangs; one that is just being started a
little more.
"""
_READINGS_MAX: Final = 4
_LIST_PAGE: Final = 5000


class _Link:
    """The way to the cluster, as long as one gateway lasts: a session there, and the connection
    that holds it.
    """

    def __init__(
        self, gateway: Gateway, session: int, connected: socket.socket, store: GatewayLedgerStore
    ) -> None:
        self.gateway = gateway
        self.session = session
        self.bookies = BookieWatch(
            lambda: list(self.connection.writers.values()), partial(store.ask, self)
        )
        self.connection = AddConnection(
            connected, lambda reason: store.forget(self, reason), self.bookies.beat
        )

    def check(self, name: str, error: BaseException) -> None:
        """Raise GATEWAY_CLOSED for what a call ended with, if the connection has ended.

        Its session did then, and a client that is being closed gives any code. That there was no
        answer in time is true all the same.
        """
        lost = self.connection.lost
        if lost is not None and isinstance(error, LedgerError) and error.code != TIMEOUT:
            raise LedgerError(GATEWAY_CLOSED, name, f"{lost}: {error}") from error

    def give_up(self, reason: str) -> None:
        """The gateway hangs. Nothing happens if the connection is closed already."""
        if self.connection.lost is None:
            self.connection.hangs = True
            self.connection.close(reason)


class GatewayLedgerStore(LedgerStore):
    """A client of one BookKeeper cluster. Call `open` first."""

    def __init__(self, settings: GatewaySettings, runtime: Runtime) -> None:
        self._settings = settings
        self._runtime = runtime
        self._executor = runtime.executor("bookkeeper-gateway", _THREADS)
        # Its own thread: those of the calls may all be waiting for a gateway that hangs.
        self._releasing = runtime.executor("bookkeeper-release", 1)
        self._connecting = asyncio.Lock()
        self._readings = asyncio.Semaphore(_READINGS_MAX)
        self._link: _Link | None = None
        self._attempt: asyncio.Task[_Link] | None = None
        self._releases: list[Future[None]] = []
        self._trouble: str | None = None
        self._opened = False
        self._closed = False

    async def open(self) -> None:
        """Start the gateway or attach to it, and connect to the cluster.

        Some 2 s for the first of a process.

        Raises LedgerError (no cluster, no gateway), GatewayMissingError (a ConfigError: what is not
        installed), ConfigError.
        """
        await self._connected()

    async def create(self, replication: Replication, custom: Mapping[str, bytes]) -> LedgerWriter:
        link = await self._connected()
        future = self._submit(link, "create", *replication, custom_text(custom), seconds=CREATE_S)
        try:
            handle, ledger_id, bookies = await self._wait(future, "create", CREATE_S)
        except BaseException as error:
            # The ledger may be created all the same, without a caller.
            future.add_done_callback(lambda late: self._abandon_soon(link, late))
            link.check("create", error)
            if (
                isinstance(error, LedgerError)
                and reaction(LedgerCall.CREATE, error.code) is Reaction.TOO_FEW_BOOKIES
            ):
                raise await self._counted(link, replication, error) from error
            raise

        async def seal(handle: int) -> None:
            try:
                await self._wait(
                    self._submit(link, "closeWriter", handle, seconds=CLOSE_S),
                    "closeWriter",
                    CLOSE_S,
                )
            except LedgerError:
                pass  # it is whole all the same: a reader that needs its end recovers it

        return GatewayWriter(link.connection, int(handle), int(ledger_id), seal, bookies.split())

    async def recover(self, ledger_id: int) -> LedgerDescription:
        return parse_description(await self._call("recover", ledger_id, seconds=RECOVER_S))

    async def describe(self, ledger_id: int) -> LedgerDescription:
        return parse_description(await self._call("describe", ledger_id, seconds=DESCRIBE_S))

    async def confirmed(self, ledger_id: int) -> int:
        (last,) = await self._call("confirmed", ledger_id, seconds=DESCRIBE_S)
        return int(last)

    async def read(
        self, ledger_id: int, first: int, last: int
    ) -> AsyncIterator[Sequence[memoryview]]:
        if first > last:
            return
        link = await self._connected()
        async with self._readings:
            gateway = link.gateway
            batches = read_entries(
                gateway.data_socket, gateway.token, link.session, ledger_id, first, last
            )
            try:
                async for batch in batches:
                    yield batch
            except NoListenerError as error:
                if self._settings.attach is None:
                    # A tool removed its socket: only another gateway has one that can be reached.
                    link.give_up(str(error))
                raise
            except LedgerError as error:
                link.check("read", error)
                raise
            finally:
                await batches.aclose()  # type: ignore[attr-defined]

    async def delete(self, ledger_id: int) -> None:
        await self._call("delete", ledger_id, seconds=DELETE_S)

    async def list_ids(self) -> Sequence[int]:
        link = await self._connected()
        (number,) = await self._wait(self._submit(link, "listOpen", seconds=LIST_S), "list", LIST_S)
        ids: list[int] = []
        while True:
            # No deadline of the gateway's own: that a page is late does not mean that it hangs.
            (text,) = await self._plain(
                link, "listNext", link.session, int(number), _LIST_PAGE, seconds=LIST_S
            )
            if not text:
                return sorted(ids)
            ids += map(int, text.split())

    async def close(self) -> None:
        self._closed = True
        link = self._link
        if link is not None:
            link.connection.close("the store is closed")
        if self._attempt is not None:
            self._attempt.cancel()
        async with self._connecting:
            # Ends the gateway of this process if no other store uses it.
            if self._releases:
                await asyncio.wait(map(asyncio.wrap_future, self._releases), timeout=_RELEASES_S)
            self._releases.clear()
            self._executor.shutdown(wait=False)
            self._releasing.shutdown(wait=False)

    def abandon(self) -> None:
        self._closed = True
        link, self._link = self._link, None
        if link is not None:
            link.connection.abandon()
            link.gateway.release()
        self._executor.shutdown(wait=False)
        self._releasing.shutdown(wait=False)

    def health(self) -> str | None:
        link = self._link
        if self._trouble is not None or link is None:
            return self._trouble
        return link.connection.health() or link.bookies.health()

    def bookies(self) -> BookieFigures:
        return self._link.bookies.figures() if self._link is not None else BookieFigures()

    async def ask(self, link: _Link, name: str) -> list[str]:
        """A call about the bookies, for one link."""
        if name == "registered":
            return await self._wait(self._submit(link, name, seconds=DESCRIBE_S), name, DESCRIBE_S)
        return await self._plain(link, name, link.session, seconds=ANSWER_S)

    async def native_bench(
        self, replication: Replication, size: int, window: int, seconds: float
    ) -> dict[str, float]:
        """What BookKeeper's client does by itself, in the gateway's own process: for measurements.

        Entries of `size` bytes, `window` in flight: rates, latencies in ms, CPU of the gateway in
        us.
        """
        link = await self._connected()
        asked = (*replication, size, window, float(seconds))
        (text,) = await self._plain(link, "bench", link.session, *asked, seconds=2 * seconds + 30)
        measured: dict[str, float] = json.loads(text)
        return measured

    async def gateway_usage(self) -> tuple[int, int, int]:
        """CPU of the gateway so far in us, bytes of its pooled direct memory, entries it holds or
        has asked for: for measurements.
        """
        link = await self._connected()
        cpu, direct, entries = map(int, await self._plain(link, "usage", seconds=ANSWER_S))
        return cpu, direct, entries

    async def _counted(
        self, link: _Link, replication: Replication, error: LedgerError
    ) -> LedgerError:
        """The error of a create that found too few bookies, with those that are there."""
        try:
            there = " ".join(await self.ask(link, "registered")).split()
        except LedgerError:
            return error
        detail = f"{replication} needs {replication.ensemble} bookies, {len(there)} are registered"
        if there:
            detail += f" ({', '.join(sorted(there)[:_NAMED_MAX])})"
        if len(there) >= replication.ensemble:
            # Recent failures, or a placement policy.
            detail += f": {error.detail}"
        return LedgerError(error.code, error.operation, detail)

    def forget(self, link: _Link, reason: str) -> None:
        """Called by a link that ended."""
        if self._link is link:
            self._link = None
        self._trouble = reason
        link.bookies.close()
        if link.connection.hangs:
            link.gateway.kill()
        self._release(link.gateway)

    def _release(self, gateway: Gateway) -> None:
        # Ending a process takes time that the loop does not have.
        self._keep(self._releasing.submit(gateway.release))

    def _keep(self, release: Future[None]) -> None:
        self._releases = [future for future in self._releases if not future.done()]
        self._releases.append(release)

    async def _call(self, name: str, *arguments: object, seconds: float) -> list[str]:
        link = await self._connected()
        try:
            return await self._wait(
                self._submit(link, name, *arguments, seconds=seconds), name, seconds
            )
        except LedgerError as error:
            link.check(name, error)
            raise

    def _submit(
        self, link: _Link, name: str, *arguments: object, seconds: float
    ) -> Future[list[str]]:
        if self._closed:
            raise LedgerError(GATEWAY_CLOSED, name, "the store is closed")
        call, loop = link.gateway.control.call, asyncio.get_running_loop()
        millis, answer_s = int(seconds * 1000), seconds + _LATE_S
        future = self._executor.submit(
            call, name, link.session, *arguments, millis, answer_s=answer_s
        )

        def notice(done: Future[list[str]]) -> None:
            if not done.cancelled() and isinstance(done.exception(), GatewayHangsError):
                try:
                    loop.call_soon_threadsafe(link.give_up, str(done.exception()))
                except RuntimeError:
                    pass  # the loop is over, and the store with it

        # Before the code that awaits the future: its next call finds the gateway given up.
        future.add_done_callback(notice)
        return future

    async def _plain(self, link: _Link, name: str, *arguments: object, seconds: float) -> list[str]:
        """A call whose deadline the gateway does not receive."""
        call = link.gateway.control.call
        return await self._wait(
            self._executor.submit(call, name, *arguments, answer_s=seconds), name, seconds
        )

    async def _wait(self, future: Future[list[str]], name: str, seconds: float) -> list[str]:
        # A gateway that says nothing is noticed by the call's own thread; this is for a call that
        # found no thread.
        try:
            async with asyncio.timeout(seconds + 2 * _LATE_S):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            raise LedgerError(
                TIMEOUT, name, f"no answer for {seconds + 2 * _LATE_S:.0f} s"
            ) from None

    def _abandon_soon(self, link: _Link, late: Future[list[str]]) -> None:
        """On whatever thread: the call is over."""
        if late.cancelled() or late.exception() is not None:
            return
        try:
            self._executor.submit(_abandon, link, late.result())
        except RuntimeError:
            # the store is closed, and its session in the gateway with it: as if the deletion had
            # failed
            pass

    async def _connected(self) -> _Link:
        link = self._link
        if link is not None and link.gateway.alive:
            return link
        async with self._connecting:
            link = self._link
            if link is not None and not link.gateway.alive:
                link.connection.close("the gateway died")
                link = None
            if self._closed:
                raise LedgerError(GATEWAY_CLOSED, "connect", "the store is closed")
            if link is None:
                try:
                    self._link = link = await self._try()
                except LedgerError as error:
                    self._trouble = str(error)
                    raise
                self._trouble = None
                self._opened = True
            return link

    async def _try(self) -> _Link:
        """One attempt to connect, which `close` may end."""
        self._attempt = attempt = own_task(self._connect(), name="connect to gateway")
        try:
            link = await attempt
            if self._closed:
                # `close` came when the attempt had just succeeded, and waits for this.
                link.connection.close("the store is closed")
                raise LedgerError(GATEWAY_CLOSED, "connect", "the store is closed")
            return link
        except asyncio.CancelledError:
            if attempt.done() and not attempt.cancelled() and attempt.exception() is None:
                # It succeeded in the turn in which its caller was cancelled: the link has no owner.
                attempt.result().connection.close("its caller was cancelled")
            caller = asyncio.current_task()
            if self._closed and caller is not None and not caller.cancelling():
                raise LedgerError(GATEWAY_CLOSED, "connect", "the store is closed") from None
            raise
        except ConfigError as error:
            # What was right when the store was opened is a machine's trouble now: a running log
            # waits for its end.
            if self._opened:
                raise LedgerError(GATEWAY_CLOSED, "connect", str(error)) from error
            raise
        finally:
            self._attempt = None

    async def _connect(self) -> _Link:
        gateway, connected, session = await self._handshake()
        link = _Link(gateway, session, connected, self)
        try:
            given = self._settings
            settings, system = given.client_settings(), given.system_properties()
            seconds = CONNECT_S if not given.given.client else CONNECT_GIVEN_S
            future = self._submit(
                link, "connect", settings, system, given.password, seconds=seconds
            )
            await self._wait(future, "connect", seconds)
        except BaseException as error:
            link.connection.close(f"no connection to the cluster: {describe(error)}")
            if isinstance(error, LedgerError) and error.code == SETTING:
                detail = f"BookKeeper's client cannot be made with its settings: {error.detail}"
                raise ConfigError("tier1", detail) from error
            if isinstance(error, LedgerError) and error.code != GATEWAY_CLOSED:
                # Whatever the client calls it, it may pass: no code of a connection ends a log.
                code = GATEWAY_CLOSED if isinstance(error, GatewayHangsError) else METADATA_SERVICE
                if error.code != code:
                    detail = f"code {error.code}: {error.detail}"
                    raise LedgerError(code, "connect", detail) from error
            raise
        return link

    async def _handshake(self) -> tuple[Gateway, socket.socket, int]:
        """A gateway, a connection to it, and the session that is alive with that.

        Its LedgerErrors are all GATEWAY_CLOSED.

        Raises ConfigError of a gateway that is of another version.
        """
        for last in (False, True):
            gateway = await self._acquire()
            try:
                connected, session = await handshake(gateway.data_socket, gateway.token)
                return gateway, connected, session
            except BaseException as error:
                try:
                    if last and isinstance(error, HungUpError):
                        await self._check_version(gateway)
                finally:
                    if isinstance(error, LedgerError) and not isinstance(error, NoSocketError):
                        # One that is dying takes no connections before it has ended.
                        gateway.kill()
                    self._release(gateway)
                if not isinstance(error, LedgerError):
                    raise
                if last:
                    raise LedgerError(GATEWAY_CLOSED, "connect", error.detail) from error
        raise AssertionError("unreachable")

    async def _check_version(self, gateway: Gateway) -> None:
        """Find out about one that hung up twice.

        Raises ConfigError if it is alive and well all the same: it does not know our handshake.
        """
        address = self._settings.attach
        if address is None:
            return  # one of ours is made from what lies beside this file
        try:
            await asyncio.wrap_future(self._executor.submit(gateway.control.call, "dataSocket"))
        except LedgerError:
            return
        detail = (
            f"the gateway at {address} is of another release: it does not speak"
            f" version {gateway_protocol.VERSION} of the gateway's protocol."
            " End it, start it anew from this release, and open the store again"
        )
        raise ConfigError("tier1", detail)

    async def _acquire(self) -> Gateway:
        address = self._settings.attach
        if address is not None:
            future: Future[Gateway] = self._executor.submit(AttachedGateway, address)
        else:
            now = asyncio.get_running_loop().time()
            future = self._executor.submit(acquire_own, now, self._runtime.random)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self._keep(self._releasing.submit(_release_late, future))
            raise
        except LedgerError as error:
            raise LedgerError(GATEWAY_CLOSED, "connect", str(error)) from error


def _release_late(late: Future[Gateway]) -> None:
    """Release a gateway that came when its caller had left."""
    try:
        late.result().release()
    except (CancelledError, LedgerError, ConfigError):
        pass  # it never came


def _abandon(link: _Link, created: Sequence[str]) -> None:
    """A ledger was created after its caller had left: no writer knows its id, so nothing is ever
    in it.
    """
    handle, ledger_id = map(int, created[:2])
    try:
        for name, number, seconds in (
            ("closeWriter", handle, CLOSE_S),
            ("delete", ledger_id, DELETE_S),
        ):
            link.gateway.control.call(
                name, link.session, number, int(seconds * 1000), answer_s=seconds + _LATE_S
            )
    except LedgerError:
        pass  # it stays, empty, until the search for orphans deletes it
