"""`segmentstore serve`: a store kept open for other processes of this machine, until it is asked to
stop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from segmentstore.cli import output
from segmentstore.cli.end_signals import asked_to_end
from segmentstore.cli.host_plans import SETTING, HostsWanted, host_folder, host_plans, ports_of
from segmentstore.cli.host_supervisor import HostSupervisor
from segmentstore.cli.line_relay import RelayedLog
from segmentstore.cli.stores import logs_of, refuse_cluster, with_own_store
from segmentstore.cli.stores import run as run_command
from segmentstore.config import CLUSTER
from segmentstore.contracts.errors import (
    ConfigError,
    ContainerStoppedError,
    NotPrimaryError,
    SegmentStoreError,
)
from segmentstore.contracts.extras import require_extra
from segmentstore.contracts.folders import checked_folder
from segmentstore.contracts.local_socket import STORE_SOCKET_NAME
from segmentstore.contracts.processes import end_with_parent
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.visible import visible
from segmentstore.store_file import FILE_NAME

if TYPE_CHECKING:
    from segmentstore import SegmentStore

_log = logging.getLogger(__name__)

CHECK_S = 2.0
"""How often it is checked whether containers still run."""


def serve_command(
    store: output.FolderArgument,
    create: Annotated[
        bool, typer.Option("--create", help="Make the store if it is not there.")
    ] = False,
    wire: Annotated[
        str,
        typer.Option(
            "--wire",
            metavar="HOST:PORT",
            help="Serve segments to Pravega's clients there; by default as wire_port says.",
        ),
    ] = "",
    controller: Annotated[
        str,
        typer.Option(
            "--controller",
            metavar="HOST:PORT",
            help="Be the Controller of Pravega's clients there; by default as controller_port "
            "says.",
        ),
    ] = "",
    host: Annotated[
        str,
        typer.Option(
            "--host",
            metavar="ID",
            help="Join the hosts of a store on BookKeeper by this name, and serve the containers "
            "that are assigned to it. It needs --wire.",
        ),
    ] = "",
    processes: Annotated[
        int | None,
        typer.Option(
            "--processes",
            metavar="N",
            help="Run N hosts, ID-1 to ID-N, each a process with a folder of its own below STORE "
            "and ports of its own, from those of --wire and --controller on; one gateway to "
            "BookKeeper for all.",
        ),
    ] = None,
    supervisor: Annotated[int, typer.Option("--supervisor", hidden=True)] = 0,
    take_over: output.TakeOverOption = False,
    as_json: output.JsonOption = False,
) -> None:
    """Open a store and let other processes of this machine append through a socket in its folder,
    and Pravega's clients use its segments over TCP.

    Says so in one line when it is ready, runs until SIGINT, SIGTERM or SIGHUP, and closes the store
    in order, or what it has opened by then. Ends with an error when a container stops by itself, or
    another process has taken over the last one: start it again. A host of a cluster goes on, for
    its containers are assigned to others; on a signal it lets others have them first. Settings come
    from the environment and store.toml, as for every command.
    """
    if supervisor:
        end_with_parent(supervisor)
    options = _port_options("wire", wire) | _port_options("controller", controller)
    if processes is not None:
        if not host or not wire:
            raise typer.BadParameter("it needs --host and --wire", param_hint="--processes")
        given = {"--create": create, "--take-over": take_over, "--json": as_json}
        _supervise(
            HostsWanted(
                store,
                host,
                processes,
                options["wire_host"],
                options["wire_port"],
                options.get("controller_host", ""),
                options.get("controller_port", 0),
                tuple(name for name, is_given in given.items() if is_given),
            )
        )
        return

    async def run(opened: SegmentStore) -> None:
        config = opened.config
        listening = {
            "wire": _address(config.wire_host, config.wire_port),
            "controller": _address(config.controller_host, config.controller_port),
        }
        # A host of a cluster is given its containers later.
        count = None if config.joins_cluster else config.served_count
        asked = asyncio.Event()
        # Before it is said that it serves: on that a signal may come.
        with asked_to_end(asked.set):
            if as_json:
                said = {"store": store, "socket": STORE_SOCKET_NAME, "containers": count}
                output.print_json({**said, **listening})
            else:
                ports = [f", {name} at {address}" for name, address in listening.items() if address]
                where = f"{visible(store)} at {STORE_SOCKET_NAME}"
                what = "containers of its cluster" if count is None else f"{count} containers"
                print(f"serving {where}, {what}{''.join(ports)}")
            sys.stdout.flush()
            await _until_asked(opened, asked)

    is_asked_early = False

    @contextmanager
    def heeding() -> Iterator[None]:
        """SIGTERM and SIGHUP cancel the opening, as Ctrl-C does."""
        opening = asyncio.current_task()
        assert opening is not None

        def ask() -> None:
            nonlocal is_asked_early
            is_asked_early = True
            opening.cancel()

        with asked_to_end(ask, by_ctrl_c=False):
            yield

    _log_as(host)
    if host:
        options |= {"serve": CLUSTER, "host_id": host}
    options |= {"create": create, "take_over": take_over, "local_server": True}
    try:
        with_own_store(store, run, around=heeding, **options)
    except asyncio.CancelledError:
        if not is_asked_early:
            raise


def _supervise(wanted: HostsWanted) -> None:
    """Run hosts until a signal. Ends with an exit code; raises ConfigError, InvalidArgumentError,
    MissingExtraError, TierUnavailableError.
    """
    refuse_cluster(wanted.store, "hosts have folders: name that in which theirs are to be")
    folder = Path(checked_folder(wanted.store, "STORE"))
    plans = host_plans(wanted, os.environ, os.getpid())
    if folder.exists() and not folder.is_dir():
        raise ConfigError(SETTING, f"{wanted.store} is no folder, and hosts have theirs below it")
    if (folder / FILE_NAME).exists():
        detail = f"{wanted.store} is a store itself: name the folder that has one for each host"
        raise ConfigError(SETTING, detail)
    logs = [logs_of(host_folder(wanted, number + 1)) for number in range(len(plans))]
    if not all(each.is_shared for each in logs):
        detail = (
            "hosts share a store on BookKeeper: SEGMENTSTORE_TIER1 names one (bookkeeper://...)"
        )
        raise ConfigError(SETTING, detail)
    require_extra("bookkeeper", "a log on BookKeeper")
    if wanted.controller_port:
        require_extra("server", "a Controller")
    # Not at the top: what is of the engine is loaded by the command that needs it.
    from durablelog.bookkeeper.cluster.addresses import free_ports  # noqa: PLC0415
    from segmentstore.cli.host_gateway import HostGateway  # noqa: PLC0415

    (port,) = free_ports(folder, 1, ports_of(wanted, os.environ))
    runtime = Runtime()

    async def supervised() -> int:
        def say(text: str) -> None:
            supervisor.say(text)

        gateway = HostGateway(port, len(plans), say, runtime)
        supervisor = HostSupervisor(plans, gateway, runtime)
        return await supervisor.run()

    raise typer.Exit(run_command(supervised()))


def _log_as(host: str) -> None:
    """Have no line of the log wait for a reader; and each name the host, if there is one. What
    concerns a container names that itself.
    """
    if not host:
        logging.basicConfig(handlers=[RelayedLog()], format="%(message)s")
        return
    shown = host.replace("%", "%%")
    logging.basicConfig(
        handlers=[RelayedLog()],
        format=f"%(asctime)s %(levelname)s host {shown} %(name)s: %(message)s",
    )
    # Who leads, and which container begins or ends where.
    for name in ("segmentstore", "durablelog"):
        logging.getLogger(name).setLevel(logging.INFO)


def _port_options(name: str, address: str) -> dict[str, Any]:
    """The settings that an address stands for; none if it is empty. Raises BadParameter."""
    if not address:
        return {}
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise typer.BadParameter(f"{address!r} is not HOST:PORT", param_hint=f"--{name}")
    return {f"{name}_host": host.strip("[]"), f"{name}_port": int(port)}


def _address(host: str, port: int) -> str | None:
    if not port:
        return None
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def _until_asked(store: SegmentStore, asked: asyncio.Event) -> None:
    """Wait for a signal. Raises what stopped a container, or took the last one away."""
    names = _name_in_each(store)
    while not asked.is_set():
        try:
            async with asyncio.timeout(CHECK_S):
                await asked.wait()
        except TimeoutError:
            await _require_running(store, names)
            # So that it knows since when a part is as it is, whenever it is asked.
            store.health()


async def _require_running(store: SegmentStore, names: dict[int, str]) -> None:
    """Pass while all containers run that no other process has taken over, and one does.

    Those that were taken over are removed from `names`, and named once.
    """
    for container_id, name in list(names.items()):
        try:
            await store.get_info(name)
        except NotPrimaryError as error:
            _log.error("container %d is served by another process: %s", container_id, error)
            del names[container_id]
            if not names:
                raise
        except ContainerStoppedError:
            # Only an opening makes it run again, and the supervisor that starts the next process
            # knows how (docs/decisions/0065).
            raise
        except SegmentStoreError:
            pass  # there is no such segment: an owner that says so is running


def _name_in_each(store: SegmentStore) -> dict[int, str]:
    """A name that is alive in each container served here."""
    # Not at the top: what is of the engine is loaded by the command that needs it.
    from segmentstore.contracts.segment_mapper import container_of  # noqa: PLC0415

    missing = dict.fromkeys(store.config.served)
    found: dict[int, str] = {}
    number = 0
    while missing:
        name = f"is-it-there-{number}"
        container_id = container_of(name, store.config.containers)
        if container_id in missing:
            del missing[container_id]
            found[container_id] = name
        number += 1
    return found
