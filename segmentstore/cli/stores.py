"""How a command comes to a store: through the process that has it open, through the hosts of a
cluster, or by opening it. Every command that changes or reads one goes through here.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import segmentstore
from segmentstore.cli import output
from segmentstore.client.store_addresses import parse_address, parse_addresses
from segmentstore.contracts import event_loops
from segmentstore.contracts.errors import (
    ContainerNotServedError,
    InvalidArgumentError,
    NotAStoreError,
    ReadOnlyFileSystemError,
    StoreUnreachableError,
)
from segmentstore.contracts.folders import checked_folder
from segmentstore.contracts.local_socket import STORE_SOCKET_NAME
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.urls import redacted
from segmentstore.settings_sources import ENVIRONMENT_PREFIX
from segmentstore.store_file import FILE_NAME
from segmentstore.store_folder import read_store_file

if TYPE_CHECKING:
    from durablelog.durable_data_log_factory import DurableDataLogFactory
    from segmentstore import ClusterStore, RemoteStore, SegmentStore, StoreApi

T = TypeVar("T")

CACHE_FOLDER = "cache"
"""Throw-away: may be removed while the store is stopped."""


_A_FOLDER = "this command works on the files of a store: name the folder of a host, on its machine"
"""What to do with a cluster that was named where a folder is needed."""


def cluster_at(location: str) -> str | None:
    """What `segmentstore.connect` is given for the cluster that is named; None of a folder.

    One address is a cluster of which one host is known. Raises InvalidArgumentError for addresses
    that are none.
    """
    if location.lower().startswith("zookeeper://") or parse_addresses(location) is not None:
        return location
    return f"{location}," if parse_address(location) is not None else None


def refuse_cluster(location: str, instead: str = _A_FOLDER) -> None:
    """Raise InvalidArgumentError if `location` is a cluster; `instead` says what to name."""
    if cluster_at(location) is not None:
        raise InvalidArgumentError("STORE", redacted(location), f"it is a cluster, and {instead}")


def require_store(location: str) -> None:
    """Raise NotAStoreError unless `location` is a store: a command that checks must not make one by
    checking.

    Raises InvalidArgumentError for a URL, or a cluster.
    """
    refuse_cluster(location)
    checked_folder(location, "STORE")
    if not Path(location).is_dir():
        raise NotAStoreError(location, "there is no such folder")
    if not (Path(location) / FILE_NAME).is_file():
        raise NotAStoreError(location, f"it has no {FILE_NAME}")


def with_store(
    location: str,
    action: Callable[[StoreApi], Awaitable[T]],
    *,
    create: bool = False,
    take_over: bool = False,
) -> T:
    """Run `action` on the store, and give what it gave.

    It runs through the hosts of a cluster, or the process that has the store open and listens,
    which stderr says; else as `with_own_store`.

    Raises InvalidArgumentError for `take_over` of a cluster.
    """
    if take_over:
        refuse_cluster(location, "its hosts take over by themselves: leave --take-over out")
    else:
        reached = through_owner(location, action)
        if reached is not None:
            return reached[0]
    return with_own_store(location, action, create=create, take_over=take_over)


def through_owner(
    location: str, action: Callable[[RemoteStore | ClusterStore], Awaitable[T]]
) -> tuple[T] | None:
    """Run `action` on the store through the process that has it open, or the hosts of a cluster.

    Gives what it gave, in a tuple; None if no process listens in the folder.
    """
    if (cluster := cluster_at(location)) is not None:
        return (run(_through_hosts(cluster, action)),)
    checked_folder(location, "STORE")
    if not (Path(location) / STORE_SOCKET_NAME).is_socket() or _is_mounted_read_only(location):
        return None

    async def connected() -> tuple[T] | None:
        store: RemoteStore
        try:
            store = await segmentstore.connect(Path(location))
        except StoreUnreachableError:
            return None  # Left by a crash, or it is about to close: the opening says which.
        async with store:
            output.print_error(f"{location} is open in another process: going through it")
            return (await action(store),)

    return run(connected())


async def _through_hosts(cluster: str, action: Callable[[ClusterStore], Awaitable[T]]) -> T:
    store = await segmentstore.connect(cluster)
    assert isinstance(store, segmentstore.ClusterStore), cluster
    async with store:
        return await action(store)


def with_own_store(
    location: str,
    action: Callable[[SegmentStore], Awaitable[T]],
    *,
    create: bool = False,
    take_over: bool = False,
    around: Callable[[], AbstractContextManager[object]] = nullcontext,
    **options: Any,
) -> T:
    """Open the store, run `action` on it, close it; what `action` gave is the result.

    `take_over`: also from an owner on BookKeeper that is alive (else as the environment and
    store.toml say). `create` makes a store that is not there. `around` is entered on the loop,
    before the opening. Ctrl-C cancels the action, closes the store and raises KeyboardInterrupt.
    Raises InvalidArgumentError for a cluster.
    """
    refuse_cluster(
        location,
        "a store is opened in a folder: name one; SEGMENTSTORE_TIER1 says where its log is",
    )
    if not create:
        require_store(location)
    if _is_mounted_read_only(location):
        # Reported here: for want of permissions the lock may be refused with another error.
        raise ReadOnlyFileSystemError(location)

    if take_over:
        options["take_over"] = True

    async def opened() -> T:
        with around():
            async with segmentstore.open(location, **options) as store:
                return await action(store)

    return run(opened())


def with_readable_store(
    location: str, action: Callable[[StoreApi], Awaitable[T]], *, whole: bool = False
) -> T:
    """As `with_store`, for an action that only reads: on a read-only file system it runs on a view
    of the store. Of a cluster its hosts are asked.

    No process can own the store there, so none is asked. On BookKeeper an opening would take the
    containers from their owner. So it runs on a view there, too, without an owner in the folder. It
    does so as well if that owner does not serve the container in question, or, for an action on the
    `whole` store, all of them. The folder need not be there, if SEGMENTSTORE_TIER1 names the store.
    stderr says that it is a view.
    """
    if cluster_at(location) is not None:
        return with_store(location, action)
    logs = logs_of(location)
    if not logs.is_shared:
        try:
            return with_store(location, action)
        except ReadOnlyFileSystemError:
            pass  # Its move is ours: nothing was opened.
        return _viewed(location, action, "is on a read-only file system")

    async def asked(owner: RemoteStore | ClusterStore) -> tuple[T] | None:
        if whole and not_served(owner):
            output.print_error("that process does not serve all containers")
            return None
        try:
            return (await action(owner),)
        except ContainerNotServedError as error:
            output.print_error(str(error))
            return None

    reached = through_owner(location, asked)
    if reached is not None and reached[0] is not None:
        return reached[0][0]
    return _viewed(location, action, f"has its log {logs.place}")


def print_what_is_left_out(store: StoreApi, entries: str) -> None:
    """Print on stderr that entries of containers which the process does not serve are not listed,
    if there are any.
    """
    if left_out := not_served(store):
        which = ", ".join(map(str, left_out[:20])) + (", ..." if len(left_out) > 20 else "")
        output.print_error(
            f"{entries} of {len(left_out)} containers that this process does not serve are not "
            f"listed: {which}"
        )


def not_served(store: StoreApi) -> Sequence[int]:
    """The containers that cannot be asked through this; none of a cluster."""
    if isinstance(store, segmentstore.ClusterStore):
        return ()
    if isinstance(store, segmentstore.RemoteStore):
        return store.not_served
    embedded = cast("SegmentStore", store)
    return sorted(set(range(embedded.config.containers)).difference(embedded.served))


def with_served_store(
    location: str, action: Callable[[RemoteStore | ClusterStore], Awaitable[T]]
) -> T:
    """Run `action` on the store through the process that has it open, or the hosts of a cluster.

    Raises StoreUnreachableError if none listens there: an opening would take the store.
    """
    reached = through_owner(location, action)
    if reached is None:
        detail = "no process serves it here: `segmentstore serve` does"
        raise StoreUnreachableError(location, detail)
    return reached[0]


def with_output(
    location: str, action: Callable[[StoreApi], Awaitable[None]], *, follow: bool
) -> None:
    """Run an action that writes what it reads to standard output. That its reader ends is an
    ordinary end, and so is Ctrl-C of one that follows.

    Raises StoreUnreachableError for a follower on BookKeeper without an owner in the folder: an
    opening would take the containers from their owner, and a view is as of now.
    """
    try:
        if not follow:
            with_readable_store(location, action)
        elif cluster_at(location) is None and logs_of(location).is_shared:
            with_served_store(location, action)
        else:
            # A wait for more needs an owner: on a read-only file system none adds any.
            with_store(location, action)
    except BrokenPipeError:
        output.abandon_stdout()
    except KeyboardInterrupt:
        if not follow:
            raise


def logs_of(location: str) -> DurableDataLogFactory:
    """Tier 1 of the store in a folder, not opened; of a folder that is none, what
    SEGMENTSTORE_TIER1 names.

    Raises ConfigError, and NotAStoreError where the folder holds something else.
    """
    # Not at the top: the other commands do not pay for it.
    from segmentstore.tier1 import make_log_factory  # noqa: PLC0415

    checked_folder(location, "STORE")
    runtime = Runtime()
    tier1 = os.environ.get(ENVIRONMENT_PREFIX + "TIER1", "") or "file"
    try:
        file = read_store_file(location, runtime) if Path(location).is_dir() else None
    except OSError:
        tier1, file = "file", None  # The opening says what is wrong.
    if file is not None:
        tier1 = str(file.settings["tier1"])
    return make_log_factory(tier1, location, os.environ, runtime)


def _viewed(location: str, action: Callable[[StoreApi], Awaitable[T]], why: str) -> T:
    # Not at the top: the other commands do not pay for it.
    from segmentstore.read_only_view import open_view  # noqa: PLC0415

    async def viewed() -> T:
        async with await open_view(location, os.environ, Runtime()) as store:
            output.print_error(f"{location} {why}: this is a read-only view as of now")
            return await action(store)

    return run(viewed())


def _is_mounted_read_only(location: str) -> bool:
    try:
        return bool(os.statvfs(location).f_flag & os.ST_RDONLY)
    except OSError:
        return False  # Not there yet, or not to be asked: the opening says what is wrong.


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a fresh event loop. Ctrl-C cancels it, and raises KeyboardInterrupt when
    it has ended; a second one does so at once.

    `asyncio.run` cancels between any two bytecodes: also in the middle of the completion of the
    future that it cancels, which fails then, on stderr. Here the loop cancels in a turn of its own.
    """
    interrupted = False

    async def main() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def interrupt() -> None:
            nonlocal interrupted
            interrupted = True
            # The next one is Python's own: it ends what does not end by itself.
            loop.remove_signal_handler(signal.SIGINT)
            task.cancel()

        is_heeded = signal.getsignal(signal.SIGINT) not in (signal.SIG_IGN, None)
        if is_heeded and threading.current_thread() is threading.main_thread():
            loop.add_signal_handler(signal.SIGINT, interrupt)
        return await work

    try:
        return event_loops.run(main())
    except asyncio.CancelledError:
        if interrupted:
            raise KeyboardInterrupt from None
        raise
