"""MetricsEndpoint: the port on which Prometheus finds a store's numbers, and probes its health.

What is answered is prometheus_client's; the server's thread is a daemon, so a program that forgets
to close its store still ends. Rules: a thread of the server reads nothing of the store. It asks the
event loop for a snapshot and waits a bounded time. Closing ends the server first, so that no
request meets a store that is half closed.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Executor
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from prometheus_client import CollectorRegistry, make_wsgi_app

from segmentstore.contracts import forks
from segmentstore.contracts.errors import ConfigError, TierUnavailableError
from segmentstore.contracts.health_tree import StoreHealth
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.serial_thread import no_thread
from segmentstore.metrics_server import CONNECTIONS_MAX, MetricsServer
from segmentstore.probe_pages import with_probes

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

T = TypeVar("T")

ANSWER_S = 5.0
"""Longest that a scrape waits for the event loop."""

Take = Callable[[], Mapping[str, Any]]


class MetricsEndpoint:
    """An open port. Made by `open`."""

    def __init__(self, serving: _Serving, executor: Executor) -> None:
        self._serving = serving
        self._executor = executor

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        take: Take,
        registry_of: Callable[[Take], CollectorRegistry],
        health: Callable[[], StoreHealth],
        runtime: Runtime,
    ) -> MetricsEndpoint:
        """Serve the snapshots that `take` gives on this event loop, and `health` to probes.

        Raises ConfigError if the port cannot be opened.
        """
        loop = asyncio.get_running_loop()

        def ask() -> Mapping[str, Any]:
            return _ask(loop, take)

        def ask_health() -> StoreHealth:
            return _ask(loop, health)

        app = with_probes(make_wsgi_app(registry_of(ask)), ask_health)
        executor = runtime.executor("metrics", 1)
        starting = loop.run_in_executor(executor, _start, host, port, app, runtime)
        try:
            # Shielded: a caller who gives up must not leave behind a port without an owner.
            serving = await asyncio.shield(starting)
        except OSError as error:
            executor.shutdown(wait=False)
            raise ConfigError(
                "metrics_port", f"{host} port {port} cannot be opened: {error}"
            ) from None
        except TierUnavailableError:
            executor.shutdown(wait=False)
            raise
        except asyncio.CancelledError:
            starting.add_done_callback(functools.partial(_give_up, executor))
            raise
        # The port is the owner's alone: a forked child that outlives it must not keep it taken.
        forks.in_child(serving.server, _close_copy)
        return cls(serving, executor)

    async def close(self) -> None:
        """End the server, its connections and threads; scrapes under way get their answer or none.

        To be called once.
        """
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._executor, _end, self._serving)
        finally:
            self._executor.shutdown(wait=False)


class _Serving(NamedTuple):
    server: MetricsServer
    thread: threading.Thread
    requests: Executor


def _start(host: str, port: int, app: WSGIApplication, runtime: Runtime) -> _Serving:
    requests = runtime.executor("metrics-requests", CONNECTIONS_MAX)
    try:
        server = MetricsServer(host, port, requests, runtime.lock())
    except BaseException:
        requests.shutdown(wait=False)
        raise
    server.set_app(app)
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.1}, name="metrics", daemon=True
    )
    try:
        thread.start()
    except RuntimeError as error:
        server.server_close()
        requests.shutdown(wait=False)
        raise no_thread("metrics") from error
    return _Serving(server, thread, requests)


def _close_copy(server: MetricsServer) -> None:
    server.socket.close()


def _end(serving: _Serving) -> None:
    serving.server.shutdown()
    serving.server.server_close()
    serving.thread.join()
    serving.server.end_connections()
    serving.requests.shutdown(wait=True)


def _give_up(executor: Executor, starting: asyncio.Future[_Serving]) -> None:
    if not starting.cancelled() and starting.exception() is None:
        executor.submit(_end, starting.result())
    executor.shutdown(wait=False)


def _ask(loop: asyncio.AbstractEventLoop, take: Callable[[], T]) -> T:
    """What `take` gives on the loop; from another thread.

    Raises TimeoutError, RuntimeError (the loop is closed).
    """

    async def taken() -> T:
        return take()

    question = taken()
    try:
        asking = asyncio.run_coroutine_threadsafe(question, loop)
    except RuntimeError:
        question.close()
        raise
    try:
        return asking.result(ANSWER_S)
    except TimeoutError:
        asking.cancel()
        raise
    except CancelledError:
        raise RuntimeError("the event loop ended") from None
