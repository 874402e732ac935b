"""`segmentstore health`: how the process is that has a store open, and whether it is ready."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import typer

from segmentstore.cli import output
from segmentstore.cli.exit_codes import ExitCode
from segmentstore.cli.stores import cluster_at, require_store, with_served_store
from segmentstore.contracts.health_tree import HealthNode, StoreHealth
from segmentstore.store_api import StoreApi


def health_command(store: output.StoreArgument, as_json: output.JsonOption = False) -> None:
    """Show how the process is that serves the store, or the hosts of a cluster, with containers and
    parts. Ends with 5 unless all containers are served that are assigned.

    For scripts and probes that have no HTTP; the metrics port answers the same at /ready.
    """

    async def run(opened: StoreApi) -> StoreHealth:
        return await opened.fetch_health()

    if cluster_at(store) is None:
        require_store(store)
    shown = with_served_store(store, run)
    if as_json:
        output.print_json(shown)
    else:
        rows = [row for host in shown["hosts"] for row in _rows(host, 0)]
        columns = ("part", "state", "since", "cause")
        output.out().print(output.table(None, columns, rows))
        for sentence in shown["waits_for"]:
            output.out().print(f"not ready: {sentence}", soft_wrap=True)
    if not shown["ready"]:
        raise typer.Exit(ExitCode.UNAVAILABLE)


def _rows(node: HealthNode, depth: int) -> Iterator[tuple[object, ...]]:
    since = datetime.fromtimestamp(node["since_ms"] // 1000, UTC)
    yield "  " * depth + node["name"], node["state"], since, "; ".join(node["causes"])
    for part in node["parts"]:
        yield from _rows(part, depth + 1)
