"""`segmentstore bookkeeper`: a BookKeeper cluster on this machine, to try and to test Tier 1 on:
install, start, stop, status.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from segmentstore.cli import output
from segmentstore.cli.exit_codes import ExitCode
from segmentstore.contracts.byte_sizes import format_size
from segmentstore.contracts.extras import require_extra
from segmentstore.contracts.folders import checked_folder

if TYPE_CHECKING:
    from durablelog.bookkeeper.cluster.local_cluster import ClusterStatus

app = typer.Typer(
    help="A BookKeeper cluster on this machine: ZooKeeper and bookies on loopback, with their "
    "data in one folder.",
    no_args_is_help=True,
)


def _folder(value: Path) -> Path:
    """Raises InvalidArgumentError for a URL."""
    return Path(checked_folder(value, "DIR"))


DirArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="Folder of the cluster.", callback=_folder)
]


@app.command()
def install() -> None:
    """Fetch BookKeeper's jars by Maven, check them, compile the gateway: what a store on BookKeeper
    needs here.

    Then let Java keep the classes it loads, so that it starts faster.
    """
    from durablelog.bookkeeper import installation  # noqa: PLC0415
    from durablelog.bookkeeper.archiving.class_archiving import make_class_archives  # noqa: PLC0415

    installation.install(_progress)
    installation.gateway_classpath(_progress)
    make_class_archives(_progress)
    output.out().print(f"BookKeeper is in {installation.installation_folder()}", soft_wrap=True)


@app.command()
def start(
    folder: DirArgument,
    bookies: Annotated[
        int | None,
        typer.Option(
            min=1, max=9, metavar="N", help="How many, 3 by default; later on more, never fewer."
        ),
    ] = None,
    as_json: output.JsonOption = False,
) -> None:
    """Start what does not run, with its data, and say how a store uses it.

    It runs on until `stop`.
    """
    # Not at the top: the other commands do not pay for ZooKeeper's client.
    require_extra("bookkeeper", "a BookKeeper cluster")
    from durablelog.bookkeeper.cluster.local_cluster import LocalCluster  # noqa: PLC0415
    from durablelog.bookkeeper.installation import install as install_jars  # noqa: PLC0415

    install_jars(_progress)
    cluster = LocalCluster(folder, bookies)
    cluster.start(_progress)
    _show(cluster.status(), as_json=as_json)


@app.command()
def stop(folder: DirArgument) -> None:
    """Stop the cluster; its data stays. Done as well if nothing runs."""
    require_extra("bookkeeper", "a BookKeeper cluster")
    from durablelog.bookkeeper.cluster.local_cluster import LocalCluster  # noqa: PLC0415

    cluster = LocalCluster(folder)
    ran = [process.name for process in cluster.processes() if process.process_id is not None]
    cluster.addresses  # noqa: B018 - a folder without a cluster is a mistake, and said
    cluster.stop()
    output.out().print(f"{folder}: stopped {', '.join(ran)}" if ran else f"{folder}: nothing runs")


@app.command()
def status(folder: DirArgument, as_json: output.JsonOption = False) -> None:
    """Show what runs, where, and what it takes on disk; ends with 5 unless all of it serves."""
    require_extra("bookkeeper", "a BookKeeper cluster")
    from durablelog.bookkeeper.cluster.local_cluster import LocalCluster  # noqa: PLC0415

    shown = LocalCluster(folder).status()
    _show(shown, as_json=as_json)
    if not shown.running:
        raise typer.Exit(ExitCode.UNAVAILABLE)


def _progress(line: str) -> None:
    output.err().print(line)


def _show(shown: ClusterStatus, *, as_json: bool) -> None:
    if as_json:
        output.print_json({"running": shown.running, **output.to_plain(shown)})
        return
    rows = [
        (
            service.name,
            service.state,
            str(service.process_id or ""),
            str(service.port),
            format_size(service.bytes_on_disk),
        )
        for service in shown.services
    ]
    output.out().print(output.table(None, ("process", "state", "id", "port", "on disk"), rows))
    output.out().print(f'tier1 = "{shown.tier1}"', soft_wrap=True)
