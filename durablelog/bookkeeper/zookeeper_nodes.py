"""ZookeeperNodes: the nodes of a ZooKeeper ensemble, by kazoo.

What calls and sessions are; watches and ephemeral nodes are in the modules beside it.

Rules of this file:

- kazoo's threads touch nothing of ours: what they have to say is handed to the event loop;
- every call has one deadline, waiting for a connection included. Nothing is sent while there is no
  connection, so that calls given up on do not pile up inside kazoo;
- a change whose reply is lost is never sent again from here: NodeUnavailableError, and the caller
  checks. Reads are;
- reads are preceded by `sync` on the same session, which ZooKeeper answers in order: without it a
  server that lags behind its leader gives yesterday's node. (A leader that was deposed and has not
  noticed yet, for a few ticks, still answers a sync. A caller that must be certain writes, for a
  write needs a quorum.);
- an expired session is replaced by kazoo itself. What hangs on a session, the nodes that are held
  and the watches, is made again with each new connection; no ownership hangs on it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, Final

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    InvalidACLError,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OperationTimeoutError,
    SessionClosedRequireSaslError,
    SessionExpiredError,
)
from kazoo.protocol.states import KeeperState
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from durablelog.bookkeeper.metadata_node import (
    MetadataNodes,
    NodeConflictError,
    NodeContent,
    NodeRefusedError,
    NodeUnavailableError,
    NodeWatch,
)
from durablelog.bookkeeper.node_elections import ElectionCalls, NodeElections
from durablelog.bookkeeper.node_holder import NodeHolder
from durablelog.bookkeeper.zookeeper_encryption import EncryptedHandler, Handshakes
from durablelog.bookkeeper.zookeeper_ephemerals import ZookeeperEphemerals
from durablelog.bookkeeper.zookeeper_watches import ZookeeperWatches, hand_over
from segmentstore.contracts.owned_tasks import own_task
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.waiting import outlast

CALLS_MAX: Final = 64
"""Calls on their way at once; what is beyond waits its turn, inside its own deadline."""
AGAIN_S: Final = 0.05
"""From a read whose connection was lost to the next try."""
_SASL_TRIES: Final = 2
_END_S: Final = 30.0
"""How long the sockets of a client that was stopped are waited for."""
RECONNECT_S_MAX: Final = 2.0
"""Longest from one round through all servers to the next, while none answers."""

_NO_CONNECTION = (ConnectionLoss, ConnectionClosedError, SessionExpiredError, OperationTimeoutError)
_REFUSED = (NoAuthError, AuthFailedError, InvalidACLError, SessionClosedRequireSaslError)

_log = logging.getLogger(__name__)
_kazoo_log = _log.getChild("kazoo")
# It logs each try to connect, and each that failed with its traceback; what matters is in `health`.
_kazoo_log.setLevel(logging.CRITICAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZookeeperSettings:
    """How an ensemble is spoken to."""

    hosts: Sequence[str]
    """`host:port`, all of one ensemble; any of them will do."""
    session_timeout_s: float = 10.0
    """What is asked for; the server bounds it by 2 and 20 of its ticks."""
    deadline_s: float = 15.0
    """Of one call. More than a session's lifetime, so that a server that dies is mostly got round.
    """
    credentials: str | None = field(default=None, repr=False)
    """`user:password`."""
    sasl: bool = False
    """Whether they are for SASL (DIGEST-MD5), and not for the scheme `digest`.

    Wants `credentials`.
    """
    encryption: ssl.SSLContext | None = None
    """Of TLS; None: in the clear."""
    creator_only: bool = False
    """Whether nodes created here admit only their creator (CREATOR_ALL); requires `credentials`.

    Else every client.
    """


class ZookeeperNodes(MetadataNodes):
    """One session with an ensemble; begun by `open`, which does not wait for a server."""

    def __init__(self, settings: ZookeeperSettings, runtime: Runtime) -> None:
        if settings.creator_only and settings.credentials is None:
            raise ValueError("nodes for their creator only, and no credentials of a creator")
        self._settings = settings
        self._runtime = runtime
        self._where = ",".join(settings.hosts)
        self._turns = asyncio.Semaphore(CALLS_MAX)
        self._connected = asyncio.Event()
        self._executor: Executor | None = None
        self._client: KazooClient | None = None
        self._state: str | None = None
        self._unanswered = 0
        """Clients in a row that came to an end by themselves before any answer."""
        self._refusal: str | None = None
        """Set when the ensemble refused the credentials themselves, and kazoo gave up for good; or
        TLS, before any answer.
        """
        self._handshakes = Handshakes(len(settings.hosts))
        self._closing: asyncio.Future[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ephemerals = ZookeeperEphemerals(
            self._ask, self._ask_again, self.create, self._remove, self._session
        )
        self._holder = NodeHolder(self._ephemerals.hold, self._remove, runtime.random)
        self._watches = ZookeeperWatches(self._watch_node, self._watch_children, runtime.random)
        calls = ElectionCalls(
            enter=self._ephemerals.enter,
            children=self.children,
            remove=self._remove,
            watch=self.watch,
        )
        self._elections = NodeElections(calls, runtime.random)
        self._address = ""

    async def open(self) -> None:
        """Begin to connect, in the background.

        Once. Cancelled, or failed, it leaves nothing open.
        """
        assert self._client is None
        self._loop = asyncio.get_running_loop()
        self._executor = self._runtime.executor("zookeeper", 1)
        self._client = self._new_client()
        try:
            await self._loop.run_in_executor(self._executor, self._client.start_async)
        except BaseException:
            # No caller has this yet that would close it.
            await outlast(own_task(self.close(), name="close zookeeper"))
            raise

    async def read(self, path: str) -> NodeContent | None:
        try:
            data, stat = await self._ask_again(
                path, lambda client: client.sync_async(path), lambda client: client.get_async(path)
            )
        except NoNodeError:
            return None
        return NodeContent(bytes(data), int(stat.version))

    async def create(self, path: str, data: bytes, *, parents: bool = True) -> int:
        try:
            await self._ask(path, lambda client: client.create_async(path, data, makepath=parents))
        except NodeExistsError:
            raise NodeConflictError(path, "it is there already") from None
        except NoNodeError:
            raise NodeConflictError(path, "the node above is not there") from None
        return 0

    async def write(self, path: str, data: bytes, version: int) -> int:
        assert version >= 0  # to ZooKeeper, -1 is any
        try:
            stat = await self._ask(path, lambda client: client.set_async(path, data, version))
        except NoNodeError:
            raise NodeConflictError(path, "it is missing") from None
        except BadVersionError:
            raise NodeConflictError(path, f"it is not in version {version} any more") from None
        return int(stat.version)

    async def delete(self, path: str, version: int) -> None:
        assert version >= 0
        try:
            await self._ask(path, lambda client: client.delete_async(path, version))
        except NoNodeError:
            return
        except BadVersionError:
            raise NodeConflictError(path, f"it is not in version {version} any more") from None
        except NotEmptyError:
            raise NodeConflictError(path, "it has children") from None

    async def children(self, path: str) -> Sequence[str]:
        try:
            names = await self._ask_again(
                path,
                lambda client: client.sync_async(path),
                lambda client: client.get_children_async(path),
            )
        except NoNodeError:
            return []
        return sorted(names)

    async def hold(self, path: str, data: bytes) -> None:
        await self._holder.hold(path, data)

    async def release(self, path: str) -> None:
        await self._holder.release(path)

    def watch(self, path: str, changed: Callable[[], object]) -> NodeWatch:
        return self._watches.add(path, changed)

    async def lead(
        self, path: str, identity: str, ended: Callable[[], object] | None = None
    ) -> None:
        await self._elections.lead(path, identity, ended)

    def leads(self, path: str) -> bool:
        return self._elections.leads(path)

    async def resign(self, path: str) -> None:
        await self._elections.resign(path)

    async def address(self) -> str:
        if not self._address and self._executor is not None and self._closing is None:
            loop = asyncio.get_running_loop()
            self._address = await loop.run_in_executor(
                self._executor, _address_towards, self._settings.hosts[0]
            )
        return self._address

    async def close(self) -> None:
        if self._client is None or self._executor is None:
            return
        if self._closing is None:
            self._closing = asyncio.get_running_loop().run_in_executor(
                self._executor, end_session, self._client
            )
            self._executor.shutdown(wait=False)
            # Calls that wait for a connection wake up, and see that there will be none.
            self._connected.set()
        await self._watches.close()
        await self._elections.close()
        await self._holder.close()
        await asyncio.shield(self._closing)

    def abandon(self) -> None:
        client, self._client = self._client, None
        if client is None or self._executor is None or self._closing is not None:
            return
        try:
            # Behind its start, which may be under way there.
            ending = self._executor.submit(end_session, client)
        except RuntimeError:
            return  # the interpreter ends, and everything with it
        self._executor.shutdown(wait=False)
        ending.result()

    def health(self) -> str | None:
        if self._refusal is not None:
            return f"zookeeper {self._where} {self._refusal}"
        if self._closing is not None or self._state == KazooState.CONNECTED:
            return None
        if self._state == KazooState.LOST:
            return f"zookeeper {self._where}: the session is lost, a new one is not begun yet"
        if self._state is None:
            return f"zookeeper {self._where}: no server has answered yet{self._handshakes.text()}"
        return f"zookeeper {self._where}: the connection is lost{self._handshakes.text()}"

    # --- what hangs on the session ----------------------------------------------------------------

    async def _remove(self, path: str) -> None:
        """Whatever version it is in; nothing happens if it is missing."""
        try:
            await self._ask(path, lambda client: client.delete_async(path))
        except NoNodeError:
            pass

    def _session(self) -> int | None:
        session = self._client.client_id if self._client is not None else None
        return int(session[0]) if session is not None else None

    async def _watch_node(self, path: str, fired: Callable[[Any], None]) -> bool:
        return await self._ask(path, lambda client: client.exists_async(path, fired)) is not None

    async def _watch_children(self, path: str, fired: Callable[[Any], None]) -> bool:
        try:
            await self._ask(path, lambda client: client.get_children_async(path, fired))
        except NoNodeError:
            return False
        return True

    # --- calls ------------------------------------------------------------------------------------

    async def _ask_again(self, path: str, *requests: Callable[[KazooClient], Any]) -> Any:
        """As `_ask`, of what changes nothing: sent again when a connection is lost, until the
        deadline.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.deadline_s
        while True:
            try:
                return await self._ask(path, *requests, deadline=deadline)
            except NodeUnavailableError:
                if self._closing is not None or loop.time() + AGAIN_S >= deadline:
                    raise
                await asyncio.sleep(AGAIN_S)

    async def _ask(
        self, path: str, *requests: Callable[[KazooClient], Any], deadline: float | None = None
    ) -> Any:
        """Send requests, one behind the other, on one session; the answer to the last.

        Raises the node errors, and kazoo's own where they say something about the node.
        """
        seconds = self._settings.deadline_s
        if deadline is None:
            deadline = asyncio.get_running_loop().time() + seconds
        try:
            async with asyncio.timeout_at(deadline), self._turns:
                client = await self._ready(path)
                answers = await asyncio.gather(
                    *[self._answer(request(client)) for request in requests]
                )
                self._unanswered = 0
                return answers[-1]
        except TimeoutError:
            detail = (
                f"zookeeper {self._where} did not answer in {seconds:g} s{self._handshakes.text()}"
            )
            raise NodeUnavailableError(path, detail) from None
        except _NO_CONNECTION as error:
            detail = f"zookeeper {self._where}: {_words(error)}"
            raise NodeUnavailableError(path, detail) from error
        except _REFUSED as error:
            hint = "see zookeeper_auth_file, zookeeper_scheme"
            raise NodeRefusedError(
                path, f"zookeeper {self._where}: {_words(error)}: {hint}"
            ) from error
        except (NoNodeError, NodeExistsError, BadVersionError, NotEmptyError):
            raise
        except KazooException as error:
            raise NodeUnavailableError(path, f"zookeeper {self._where}: {_words(error)}") from error

    async def _ready(self, path: str) -> KazooClient:
        """The client, once it is connected; a new one in place of one that has come to an end by
        itself.
        """
        while True:
            if self._client is None or self._closing is not None:
                raise NodeUnavailableError(path, "the session is closed")
            if self._refusal is not None:
                raise NodeRefusedError(path, f"zookeeper {self._where} {self._refusal}")
            if not self._connected.is_set():
                await self._connected.wait()
            elif self._client.connected:
                return self._client
            else:
                # The news of its loss is on the way to this loop.
                await asyncio.sleep(AGAIN_S)

    def _answer(self, result: Any) -> asyncio.Future[Any]:
        """What kazoo's result becomes, on our loop."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def settle(exception: BaseException | None, value: Any) -> None:
            if future.done():
                return
            if exception is not None:
                future.set_exception(exception)
            else:
                future.set_result(value)

        def done(settled: Any) -> None:
            hand_over(loop, settle, settled.exception, settled.value)

        result.rawlink(done)
        return future

    # --- the session ------------------------------------------------------------------------------

    def _new_client(self) -> KazooClient:
        settings, loop = self._settings, self._loop
        assert loop is not None

        def handshake_failed(server: str, error: ssl.SSLError) -> None:
            hand_over(loop, self._handshake_failed, server, error)

        client = KazooClient(
            hosts=self._where,
            timeout=settings.session_timeout_s,
            **_authentication(settings),
            handler=settings.encryption and EncryptedHandler(settings.encryption, handshake_failed),
            default_acl=CREATOR_ALL_ACL if settings.creator_only else OPEN_ACL_UNSAFE,
            connection_retry=KazooRetry(
                max_tries=-1, delay=0.1, backoff=2, max_delay=RECONNECT_S_MAX
            ),
            logger=_kazoo_log,
        )
        client.add_listener(
            lambda state: hand_over(loop, self._changed, client, state, client.client_state)
        )
        return client

    def _changed(self, client: KazooClient, state: str, precisely: str) -> None:
        if client is not self._client or self._closing is not None:
            return
        if precisely == KeeperState.AUTH_FAILED:
            self._refusal = "refuses the credentials: authentication failed"
        elif (
            precisely == KeeperState.CLOSED
            and self._settings.sasl
            and self._unanswered >= _SASL_TRIES
        ):
            # A server that requires SASL hangs up on unknown clients, and kazoo's thread ends by
            # that.
            self._refusal = "refuses the credentials: SASL authentication failed"
        elif precisely == KeeperState.CLOSED:
            self._unanswered += 1
            # No call closed it: its thread has ended by an unexpected error.
            self._replace(client)
        _log.log(
            logging.INFO if state == KazooState.CONNECTED else logging.WARNING,
            "zookeeper %s: %s",
            self._where,
            state,
        )
        self._state = state
        if state == KazooState.CONNECTED:
            self._handshakes.connected()
        else:
            self._elections.disconnected()
        if state == KazooState.CONNECTED or self._refusal is not None:
            self._connected.set()
            self._holder.connected()
            self._watches.connected()
        else:
            self._connected.clear()

    def _handshake_failed(self, server: str, error: ssl.SSLError) -> None:
        if self._handshakes.failed(server, error):
            self._refusal = f"and this client do not agree on TLS{self._handshakes.text()}"
            self._connected.set()

    def _replace(self, client: KazooClient) -> None:
        assert self._executor is not None
        fresh = self._client = self._new_client()
        self._executor.submit(end_session, client)
        self._executor.submit(fresh.start_async)


def _authentication(settings: ZookeeperSettings) -> dict[str, Any]:
    """For kazoo."""
    if settings.credentials is None:
        return {}
    if not settings.sasl:
        return {"auth_data": [("digest", settings.credentials)]}
    user, _, password = settings.credentials.partition(":")
    return {"sasl_options": {"mechanism": "DIGEST-MD5", "username": user, "password": password}}


def _address_towards(server: str) -> str:
    """Which of our addresses leads there: the system knows without a word being sent.

    Blocks for the resolver.
    """
    host, _, port = server.rpartition(":")
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(where)
            return str(probe.getsockname()[0])
    except OSError:
        return ""  # for people alone


def end_session(client: KazooClient) -> None:
    """Say good-bye to the ensemble, stop kazoo's threads, close its sockets.

    Blocking, for up to the session's lifetime and _END_S.
    """
    try:
        client.stop()
    except Exception:  # noqa: BLE001 - a session that cannot be ended in order expires
        _log.debug("a session with zookeeper did not end in order", exc_info=True)
    # Another call may have stopped it, and its thread be about to end: sockets are closed only
    # after that.
    pause = threading.Event()
    for _ in range(int(_END_S / AGAIN_S)):
        try:
            client.close()
        except Exception:  # noqa: BLE001
            # Of no type of kazoo's: "cannot close connection until it is stopped".
            pause.wait(AGAIN_S)
        else:
            return
    _log.warning("the sockets of a session with zookeeper stay open: its thread does not end")


def _words(error: BaseException) -> str:
    text = str(error)
    return f"{type(error).__name__}{': ' + text if text else ''}"
