"""MetricsEndpoint: the port on which Prometheus finds a store's numbers.

The server and its threads are prometheus_client's; they are daemons, so a program that forgets to close its store still
ends. Rules: a thread of the server reads nothing of the store, it asks the event loop for a snapshot and waits a bounded
time; closing ends the server first, so that nobody asks a store that is half closed.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import CancelledError, Executor
from typing import Any
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import start_wsgi_server

from segmentstore.contracts.errors import ConfigError
from segmentstore.contracts.runtime import Runtime

ANSWER_S = 5.0
"""Longest that a scrape waits for the event loop."""

Take = Callable[[], Mapping[str, Any]]


class MetricsEndpoint:
    """An open port. Made by `open`."""

    def __init__(self, server: WSGIServer, join: Callable[[], None], executor: Executor) -> None:
        self._server = server
        self._join = join
        self._executor = executor

    @classmethod
    async def open(
        cls, host: str, port: int, take: Take, registry_of: Callable[[Take], CollectorRegistry], runtime: Runtime
    ) -> MetricsEndpoint:
        """Serve the snapshots that `take` gives on this event loop. Raises ConfigError if the port cannot be opened."""
        loop = asyncio.get_running_loop()

        async def taken() -> Mapping[str, Any]:
            return take()

        def ask() -> Mapping[str, Any]:
            return _ask(loop, taken)

        executor = runtime.executor("metrics", 1)
        starting = loop.run_in_executor(executor, functools.partial(start_wsgi_server, port, host, registry_of(ask)))
        try:
            # Shielded: a caller who gives up must not leave behind a port that nobody knows of.
            server, thread = await asyncio.shield(starting)
        except OSError as error:
            executor.shutdown(wait=False)
            raise ConfigError("metrics_port", f"{host} port {port} cannot be opened: {error}") from None
        except asyncio.CancelledError:
            starting.add_done_callback(functools.partial(_give_up, executor))
            raise
        return cls(server, thread.join, executor)

    async def close(self) -> None:
        """End the server and its thread; scrapes that wait for us get their answer or none. To be called once."""
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._executor, _end, self._server, self._join)
        finally:
            self._executor.shutdown(wait=False)


def _end(server: WSGIServer, join: Callable[[], None]) -> None:
    server.shutdown()
    server.server_close()
    join()


def _give_up(executor: Executor, starting: asyncio.Future[Any]) -> None:
    if not starting.cancelled() and starting.exception() is None:
        server, thread = starting.result()
        executor.submit(_end, server, thread.join)
    executor.shutdown(wait=False)


def _ask(
    loop: asyncio.AbstractEventLoop, taken: Callable[[], Coroutine[Any, Any, Mapping[str, Any]]]
) -> Mapping[str, Any]:
    """A snapshot, taken on the loop; from another thread. Raises TimeoutError, RuntimeError (the loop is closed)."""
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
