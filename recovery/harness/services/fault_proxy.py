"""FaultProxy: an HTTP proxy on this machine in front of one S3 server, that does to requests what
networks do.

    with FaultProxy("127.0.0.1", server_port) as proxy:
        proxy.fault(DropReply(), "complete_upload") # the next Complete is done, and its reply is
        lost proxy.fault(SLOW_DOWN, times=None) # and then nothing but 503 until `heal` ... a client
        with endpoint_url=proxy.endpoint_url ...

Theory of operation. The proxy has a thread and an event loop of its own, so that it serves callers
that block and callers on other loops alike. It knows where messages end and answers
`Expect: 100-continue` itself; that is why it can let a request take effect and lose the reply.
Which request suffers what is said by rules that a test queues (`fault_rules`); nothing is left to
chance.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import socket
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterable
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar

from recovery.harness.services.fault_exchange import ConnectionLostError, Exchange, Upstream
from recovery.harness.services.fault_messages import (
    HEAD_BYTES_MAX,
    Head,
    MessageError,
    operation_of,
    read_head,
)
from recovery.harness.services.fault_rules import Fault, FaultRules, Rule
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.waiting import stop_accepting
from tier2.request_statistics import Operation

T = TypeVar("T")

CONNECTIONS_MAX: Final = 256
"""Callers beyond it are turned away."""
SEEN_MAX: Final = 10_000
_START_S: Final = 60.0
_CALL_S: Final = 100.0
_HOST: Final = "127.0.0.1"


class SeenRequest(NamedTuple):
    """A request that reached the proxy."""

    operation: Operation | None
    target: str
    fault: Fault | None


class FaultProxy:
    """A proxy in front of the server at `host`, `port`.

    A context manager; its methods may be called from any thread.
    """

    def __init__(self, host: str, port: int, *, runtime: Runtime | None = None) -> None:
        runtime = runtime if runtime is not None else Runtime()
        self._server_address = host, port
        self._rules = FaultRules(runtime.lock())
        self._executor = runtime.executor("fault-proxy", 1)
        self._ready: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._ended: concurrent.futures.Future[None] | None = None
        self._seen: deque[SeenRequest] = deque(maxlen=SEEN_MAX)
        # Bound and never listening: the port stays ours while it has no listener.
        self._holder = _bound_socket(0)
        self.port: int = self._holder.getsockname()[1]
        self._connections: dict[asyncio.Task[Any], asyncio.StreamWriter] = {}
        self._server: asyncio.Server | None = None

    # --- process run
    # -------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._ended = self._executor.submit(asyncio.run, self._serve())
        self._ended.add_done_callback(self._serving_ended)
        self._ready.result(_START_S)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End every connection and the thread.

        Requests that were to be late are forgotten. Idempotent.
        """
        if self._ended is not None and not self._ended.done():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._ended.result(_CALL_S)
        self._executor.shutdown()
        self._holder.close()

    @property
    def endpoint_url(self) -> str:
        """Where callers find the proxy."""
        return f"http://{_HOST}:{self.port}"

    # --- what goes wrong --------------------------------------------------------------------------

    def fault(
        self,
        fault: Fault,
        *operations: Operation,
        times: int | None = 1,
        skip: int = 0,
        when: Callable[[Head], bool] | None = None,
    ) -> Rule:
        """Queue a fault for requests of these kinds (of any kind if none is named). It hits the
        next `times` of them after `skip`, None for all, of those whose head passes `when`. The
        oldest rule that fits wins.
        """
        return self._rules.add(Rule(operations, fault, times, skip, when))

    def heal(self, rules: Iterable[Rule] | None = None) -> None:
        """Remove these rules, or all, and release what is stalled."""
        self._rules.remove(rules)
        self.release()

    def unused(self) -> list[Rule]:
        """Rules that did not meet as many requests as they were meant for."""
        return self._rules.unused()

    def release(self) -> None:
        """Let every stalled request go on. Those that stall later wait for the next release."""
        self._call(self._release())

    def release_late(self) -> list[int]:
        """Send every request held back by `Late` to the server now, in order; the statuses of its
        replies.

        Raises OSError, MessageError if the server does not answer.
        """
        return self._call(self._release_late())

    def refuse(self) -> None:
        """From now on every connection is refused, open ones end, as if the server had ended."""
        self._call(self._refuse())

    def accept(self) -> None:
        """Connections are taken again."""
        self._call(self._listen())

    def point_at(self, host: str, port: int) -> None:
        """From now on requests go to another server, or to the same one at a new place."""
        self._server_address = host, port
        self._call(self._point())

    # --- what was seen ----------------------------------------------------------------------------

    def seen(self, *operations: Operation) -> list[SeenRequest]:
        """The last SEEN_MAX requests, oldest first; of these kinds, if some are named."""
        return [
            each for each in tuple(self._seen) if not operations or each.operation in operations
        ]

    def counts(self) -> Counter[Operation | None]:
        """How many of them were of each kind."""
        return Counter(each.operation for each in tuple(self._seen))

    # --- the proxy's own thread -------------------------------------------------------------------

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_S)

    def _serving_ended(self, ended: concurrent.futures.Future[None]) -> None:
        if not self._ready.done():
            self._ready.set_exception(
                ended.exception() or RuntimeError("the proxy ended before it began")
            )

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._upstream = Upstream(*self._server_address)
        async with asyncio.TaskGroup() as group:
            self._group = group
            await self._listen()
            self._ready.set_result(None)
            await self._stop.wait()
            await self._refuse()
            # What was to be late.
            for task in asyncio.all_tasks():
                if task is not asyncio.current_task():
                    task.cancel()

    async def _listen(self) -> None:
        if self._server is None:
            listener = _bound_socket(self.port)
            self._server = await asyncio.start_server(
                self._converse, sock=listener, limit=HEAD_BYTES_MAX, backlog=256
            )

    async def _refuse(self) -> None:
        if self._server is not None:
            server, self._server = self._server, None
            await stop_accepting(server)
            # The task of one that was accepted just before takes note of it in its first turn.
            await asyncio.sleep(0)
        connections = dict(self._connections)
        for task, writer in connections.items():
            writer.transport.abort()
            task.cancel()
        if connections:
            await asyncio.wait(connections)

    async def _point(self) -> None:
        self._upstream.host, self._upstream.port = self._server_address

    async def _release(self) -> None:
        self._upstream.released.set()
        self._upstream.released = asyncio.Event()

    async def _release_late(self) -> list[int]:
        statuses = []
        while self._upstream.late:
            _, held = self._upstream.late.popitem(last=False)
            statuses.append((await self._upstream.apply(*held)).head.status)
        return statuses

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._group.create_task(work)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One caller's connection, request after request."""
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = writer
        try:
            while len(self._connections) <= CONNECTIONS_MAX:
                head = await read_head(reader)
                if head is None or not await self._exchange(reader, writer, head):
                    break
            await writer.drain()
            writer.close()
        except (ConnectionLostError, MessageError, OSError, asyncio.CancelledError):
            pass  # The caller finds its connection ended: that is all a network ever says.
        finally:
            if not writer.is_closing():
                writer.transport.abort()
            del self._connections[task]

    async def _exchange(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: Head
    ) -> bool:
        upstream = self._upstream
        operation = operation_of(head)
        fault = self._rules.take(operation, head, lambda fault: upstream.is_possible(head, fault))
        self._seen.append(SeenRequest(operation, head.target, fault))
        return await Exchange(upstream, reader, writer, head, self._spawn).run(fault)


def _bound_socket(port: int) -> socket.socket:
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # The holder and the listener share the port.
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    found.bind((_HOST, port))
    return found
