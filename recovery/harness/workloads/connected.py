"""Clients of `segmentstore.connect`: the workloads' clients, over connections that are cut.

The loss of its connection ends a client's work, as a store that has stopped does. It connects again
and goes on. Rules of this file:

- a connection ends by a cut, or by its client at the end. That the server ends one is an error;
- once it has ended, each call on it has its outcome, and the right one (`OutcomeWatch`).
"""

from __future__ import annotations

from recovery.harness.workloads.bench import STOPPED, ClientBench, ClientFunction
from recovery.harness.workloads.outcome_watch import OutcomeWatch
from recovery.harness.workloads.wire_writers import WireFaultError
from segmentstore.client.client_connection import ClientConnection
from segmentstore.client.connecting import store_behind
from segmentstore.client.remote_sessions import CHUNK_BYTES
from segmentstore.contracts.errors import StoreUnreachableError


async def run_connected(run: ClientFunction, bench: ClientBench) -> None:
    """Connects again whenever the connection was cut, until the client's part is done or the store
    has stopped.
    """
    while await _converse(run, bench):
        await bench.pause(0.02)


async def _converse(run: ClientFunction, bench: ClientBench) -> bool:
    """One connection to its end; whether there is something left to do."""
    history = bench.store.history
    first = len(history.calls)
    watch = OutcomeWatch()
    connection = ClientConnection("memory")
    link = bench.service.link(connection, watch, bench.random)
    is_done = False
    try:
        store = await store_behind(connection)
        bench.store.use(store, CHUNK_BYTES)
        await run(bench)
        is_done = True
    except (*STOPPED, StoreUnreachableError):
        pass  # what it was doing is in the history
    await bench.store.settle()
    is_cut = link.is_cut
    if not is_cut and bench.rng(0.5):
        await connection.close()
    else:
        connection.close_now()
    if is_cut and link.ended_by != "cut":
        raise WireFaultError(f"the {link.ended_by} has ended a connection of {bench.store.client}")
    client = bench.store.client
    watch.check(call for call in history.calls[first:] if call.client == client)
    return is_cut and not is_done
