"""`segmentstore cluster`: the hosts of a store on BookKeeper, which container each serves, and what
a person wants of that.

No host has to run: the nodes in ZooKeeper say everything. A change is written to the assignment
map; the leader follows it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Final, TypeVar

import typer

import segmentstore
from segmentstore.cli import output
from segmentstore.cli.exit_codes import CommandError, ExitCode
from segmentstore.cli.stores import refuse_cluster, require_store, with_served_store
from segmentstore.cluster.administration import edit_map, read_cluster
from segmentstore.cluster.assignment_map import AssignmentMap
from segmentstore.cluster.cluster_nodes import ClusterNodes
from segmentstore.cluster.host_record import check_host_id
from segmentstore.cluster.map_edits import allow, drain, forbid, pin, undrain, unpin
from segmentstore.contracts.errors import InvalidArgumentError, TierUnavailableError
from segmentstore.contracts.extras import require_extra
from segmentstore.contracts.runtime import Runtime

T = TypeVar("T")

_NAMED_MAX: Final = 20
"""Hosts that a message names."""

app = typer.Typer(
    help="The hosts of a store on BookKeeper (serve=cluster), and which container each serves.",
    no_args_is_help=True,
)

ClusterArgument = Annotated[
    str,
    typer.Argument(
        metavar="STORE",
        help="Folder of a host, zookeeper://HOST:PORT,HOST:PORT/PATH, or the bookkeeper:// URL of "
        "its log.",
    ),
]
DirArgument = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the cluster.")]
HostArgument = Annotated[str, typer.Argument(metavar="HOST", help="Id of the host.")]
AbsentOption = Annotated[
    bool, typer.Option("--absent", help="HOST need not be known: it is to join later.")
]
ContainerArgument = Annotated[int, typer.Argument(metavar="CONTAINER", help="Its number.", min=0)]


# --- what there is --------------------------------------------------------------------------------


@app.command()
def status(store: ClusterArgument, as_json: output.JsonOption = False) -> None:
    """Show how many containers are served; ends with 5 unless all are."""
    shown = _with_cluster(store, read_cluster)
    numbers = {
        "hosts": len(shown.hosts),
        "containers": shown.containers,
        "serving": shown.serving,
        "without_host": shown.unowned,
        "moving": sorted(shown.map.moves),
        "epoch": shown.map.epoch,
    }
    if as_json:
        output.print_json(numbers)
    else:
        output.out().print(output.pairs(None, numbers))
    if shown.serving < shown.containers:
        raise typer.Exit(ExitCode.UNAVAILABLE)


@app.command()
def hosts(store: ClusterArgument, as_json: output.JsonOption = False) -> None:
    """List the hosts that are registered."""
    rows = _with_cluster(store, read_cluster).host_rows()
    if as_json:
        output.print_json_lines(rows)
        return
    columns = (
        "host", "address", "version", "capacity", "since", "draining", "assigned", "running",
        "failed", "in B/s", "out B/s", "un-flushed", "segments",
    )  # fmt: skip
    cells = [(*row[:4], _time(row.started_ms), *row[5:]) for row in rows]
    output.out().print(output.table(None, columns, cells))


@app.command()
def containers(store: ClusterArgument, as_json: output.JsonOption = False) -> None:
    """List all containers: where each is to be served, and what that host reports."""
    rows = _with_cluster(store, read_cluster).container_rows()
    if as_json:
        output.print_json_lines(rows)
        return
    columns = ("container", "host", "state", "since", "cause", "pinned to", "still on")
    cells = [
        (*row[:3], _time(row.since_ms), row.cause, row.pinned_to, ", ".join(row.also_on))
        for row in rows
    ]
    output.out().print(output.table(None, columns, cells))


@app.command(name="map")
def show_map(store: ClusterArgument, as_json: output.JsonOption = False) -> None:
    """Show the assignment map: each host with its containers, and what persons asked for."""
    current = _with_cluster(store, read_cluster).map
    by_host: dict[str, list[int]] = {}
    for number, host in sorted(current.owners.items()):
        by_host.setdefault(host, []).append(number)
    shown = {
        "epoch": current.epoch,
        "owners": dict(sorted(by_host.items())),
        "pins": {str(number): host for number, host in sorted(current.pins.items())},
        "draining": sorted(current.draining),
        "forbidden": [list(pair) for pair in sorted(current.forbidden)],
    }
    if as_json:
        output.print_json(shown)
    else:
        output.out().print(output.pairs(None, output.flatten(shown)))


# --- a cluster on this machine -------------------------------------------------------------------


@app.command()
def start(
    folder: DirArgument,
    hosts: Annotated[
        int, typer.Option("--hosts", min=1, max=16, metavar="N", help="How many.")
    ] = 3,
    bookies: Annotated[
        int | None, typer.Option(min=1, max=9, metavar="N", help="How many, 3 by default.")
    ] = None,
    containers: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Of the store, fixed at its first start; 12."),
    ] = None,
    controller: Annotated[
        bool,
        typer.Option("--controller", help="Give each host a Controller, for Pravega's clients."),
    ] = False,
    as_json: output.JsonOption = False,
) -> None:
    """Start a whole cluster on this machine, to try it: ZooKeeper, bookies, and hosts.

    Says where each host is when all containers are served. It runs on until `stop`.
    """
    require_extra("bookkeeper", "a cluster")
    if controller:
        require_extra("server", "a Controller")
    from durablelog.bookkeeper.installation import install as install_jars  # noqa: PLC0415
    from segmentstore.cli.local_hosts import LocalHosts  # noqa: PLC0415

    install_jars(output.err().print)
    local = LocalHosts(folder)
    picture = local.start(hosts, bookies, containers, output.err().print, controllers=controller)
    rows = picture.host_rows()
    uris = local.controller_uris
    if as_json:
        output.print_json(
            {
                "tier1": local.url,
                "cluster": local.zookeeper_url,
                "hosts": rows,
                "controllers": uris,
            }
        )
        return
    columns = ("host", "address", "containers", "folder")
    output.out().print(
        output.table(
            None,
            columns,
            [
                (row.host, row.address, row.running, str(folder / row.host / "store"))
                for row in rows
            ],
        )
    )
    if uris:
        output.out().print(f"Pravega's clients: {uris[0]}, or of another host", soft_wrap=True)
    for command in ("cluster containers", "ls"):
        output.out().print(f"segmentstore {command} {local.zookeeper_url}", soft_wrap=True)


@app.command()
def stop(folder: DirArgument) -> None:
    """Stop a cluster on this machine: the hosts in order, then BookKeeper. Its data stay."""
    require_extra("bookkeeper", "a cluster")
    from segmentstore.cli.local_hosts import LocalHosts  # noqa: PLC0415

    ran = LocalHosts(folder).stop()
    output.out().print(f"{folder}: {'stopped ' + ', '.join(ran) if ran else 'nothing runs'}")


# --- what a person wants --------------------------------------------------------------------------


@app.command(name="drain")
def drain_command(store: ClusterArgument, host: HostArgument, absent: AbsentOption = False) -> None:
    """Give a host no container, and move those that it has to others."""
    _edit(store, lambda _count, before: drain(before, host), None if absent else host)


@app.command()
def leave(store: output.StoreArgument) -> None:
    """Have other hosts take over all containers of the host that serves this folder, and wait for
    that. Ends with 5 if it still has some.

    For what ends the process next: it is given no container until it is started again.
    """

    async def run(opened: segmentstore.RemoteStore | segmentstore.ClusterStore) -> list[int]:
        assert isinstance(opened, segmentstore.RemoteStore), store
        return await opened.drain()

    require_store(store)
    if left := with_served_store(store, run):
        numbers = ", ".join(map(str, left[:20])) + (", ..." if len(left) > 20 else "")
        raise TierUnavailableError("tier1", f"no other host takes the containers {numbers}")
    output.out().print("it serves no container any more")


@app.command(name="undrain")
def undrain_command(store: ClusterArgument, host: HostArgument) -> None:
    """Let a host have containers again."""
    _edit(store, lambda _count, before: undrain(before, host))


@app.command(name="pin")
def pin_command(
    store: ClusterArgument,
    container: ContainerArgument,
    host: HostArgument,
    absent: AbsentOption = False,
) -> None:
    """Move a container to a host, and have it there whenever the host is present."""
    _edit(
        store, lambda count, before: pin(before, count, container, host), None if absent else host
    )


@app.command(name="unpin")
def unpin_command(store: ClusterArgument, container: ContainerArgument) -> None:
    """Let a container be on any host."""
    _edit(store, lambda count, before: unpin(before, count, container))


@app.command(name="forbid")
def forbid_command(
    store: ClusterArgument,
    container: ContainerArgument,
    host: HostArgument,
    absent: AbsentOption = False,
) -> None:
    """Never have a container on a host, even if there is no other."""
    _edit(
        store,
        lambda count, before: forbid(before, count, container, host),
        None if absent else host,
    )


@app.command(name="allow")
def allow_command(store: ClusterArgument, container: ContainerArgument, host: HostArgument) -> None:
    """Take `forbid` back."""
    _edit(store, lambda count, before: allow(before, count, container, host))


def _edit(
    store: str, change: Callable[[int, AssignmentMap], AssignmentMap], known: str | None = None
) -> None:
    """Change the map; `known` is a host that the cluster must know."""

    async def edited(nodes: ClusterNodes, count: int) -> AssignmentMap:
        if known is not None:
            _require_known(known, (await read_cluster(nodes, count)).known_hosts())
        return await edit_map(nodes, partial(change, count))

    after = _with_cluster(store, edited)
    output.out().print(f"the assignment map has epoch {after.epoch}")


# --- inside ---------------------------------------------------------------------------------------


def _with_cluster(store: str, work: Callable[[ClusterNodes, int], Awaitable[T]]) -> T:
    """What `work` gives, with the nodes of a cluster and the number of its containers.

    Raises CommandError: there is no store; ConfigError: its log is not on BookKeeper, or that is
    wrong; TierUnavailableError.
    """
    # Not at the top: the other commands do not pay for ZooKeeper's client.
    from durablelog.bookkeeper.bookkeeper_clients import open_nodes, translated  # noqa: PLC0415
    from durablelog.bookkeeper.bookkeeper_location import BookKeeperLocation  # noqa: PLC0415
    from durablelog.bookkeeper.store_node import read_identity  # noqa: PLC0415

    if by_zookeeper := store.lower().startswith("zookeeper://"):
        location = BookKeeperLocation.parse_zookeeper(store)
    else:
        # Of a log elsewhere it says that: one process serves all of such a store.
        location = BookKeeperLocation.parse(store if "://" in store else _tier1_of(store))

    async def main() -> T:
        async with translated():
            nodes = await open_nodes(location, os.environ, Runtime())
            try:
                identity = await read_identity(nodes, location.path)
                if identity is None:
                    url = location.zookeeper_url if by_zookeeper else location.url
                    raise CommandError(f"there is no store at {url}")
                return await work(ClusterNodes(nodes, location.path), identity.containers)
            finally:
                await nodes.close()

    return asyncio.run(main())


def _require_known(host: str, known: Sequence[str]) -> None:
    check_host_id("host", host)
    if host not in known:
        names = ", ".join(known[:_NAMED_MAX]) + (", ..." if len(known) > _NAMED_MAX else "")
        detail = f"the cluster knows no such host, but {names or 'none'}: correct it, or --absent"
        raise InvalidArgumentError("host", host, detail)


def _tier1_of(folder: str) -> str:
    from segmentstore.store_folder import read_store_file  # noqa: PLC0415

    refuse_cluster(folder, "hosts do not say what ZooKeeper has: name zookeeper://HOST:PORT/PATH")
    require_store(folder)
    file = read_store_file(folder, Runtime())
    assert file is not None, folder
    return str(file.settings["tier1"])


def _time(since_ms: int | None) -> datetime | None:
    return None if since_ms is None else datetime.fromtimestamp(since_ms // 1000, UTC)
