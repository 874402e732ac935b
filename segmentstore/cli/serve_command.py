"""`segmentstore serve`: a store kept open for other processes of this machine, until it is asked to
stop.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from segmentstore.cli import output
from segmentstore.cli.stores import with_own_store
from segmentstore.config import CLUSTER
from segmentstore.contracts.errors import ContainerStoppedError, NotPrimaryError, SegmentStoreError
from segmentstore.contracts.local_socket import STORE_SOCKET_NAME
from segmentstore.contracts.visible import visible

if TYPE_CHECKING:
    from segmentstore import SegmentStore

_log = logging.getLogger(__name__)

CHECK_S = 2.0
"""How often it is checked whether containers still run."""


def serve_command(
    store: output.StoreArgument,
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
    take_over: output.TakeOverOption = False,
    as_json: output.JsonOption = False,
) -> None:
    """Open a store and let other processes of this machine append through a socket in its folder,
    and Pravega's clients use its segments over TCP.

    Says so in one line when it is ready, runs until SIGINT or SIGTERM, and closes the store in
    order. Ends with an error when a container stops by itself, or another process has taken over
    the last one: start it again. A host of a cluster goes on, for its containers are assigned to
    others; on a signal it lets others have them first. Settings come from the environment and
    store.toml, as for every command.
    """

    async def run(opened: SegmentStore) -> None:
        config = opened.config
        listening = {
            "wire": _address(config.wire_host, config.wire_port),
            "controller": _address(config.controller_host, config.controller_port),
        }
        # A host of a cluster is given its containers later.
        count = None if config.joins_cluster else config.served_count
        if as_json:
            said = {"store": store, "socket": STORE_SOCKET_NAME, "containers": count}
            output.print_json({**said, **listening})
        else:
            ports = [f", {name} at {address}" for name, address in listening.items() if address]
            where = f"{visible(store)} at {STORE_SOCKET_NAME}"
            what = "containers of its cluster" if count is None else f"{count} containers"
            print(f"serving {where}, {what}{''.join(ports)}")
        sys.stdout.flush()
        await _until_reported(opened)

    options = _port_options("wire", wire) | _port_options("controller", controller)
    if host:
        options |= {"serve": CLUSTER, "host_id": host}
    with_own_store(store, run, create=create, local_server=True, take_over=take_over, **options)


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


async def _until_reported(store: SegmentStore) -> None:
    """Wait for a signal. Raises what stopped a container, or took the last one away."""
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, asked.set)
    names = _name_in_each(store)
    try:
        while not asked.is_set():
            try:
                async with asyncio.timeout(CHECK_S):
                    await asked.wait()
            except TimeoutError:
                await _require_running(store, names)
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


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
