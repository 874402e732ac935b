"""Log probes of a simulated world: the logs as they lie between two process runs, in files, in the
service, or on bookies.

No process has the store open, and no client makes a check: it fences nothing, and meets no fault.
Rules of this file:

- what is due by now has arrived first, and a random part of the requests of dead processes. A
  recovery that began now would find it so, too;
- of a ledger that has no end yet everything is taken that any bookie has, up to the first hole.
  That holds all that was ever acknowledged; a recovery may find less.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from durablelog.bookkeeper.bookkeeper_location import BookKeeperLocation
from durablelog.bookkeeper.entry_checks import EntryChecks
from durablelog.bookkeeper.ledger_addresses import split_address
from durablelog.bookkeeper.ledger_store import LedgerState
from durablelog.bookkeeper.log_metadata import LedgerItem, decode_record
from durablelog.bookkeeper.store_node import container_path
from durablelog.durable_data_log import LogFrame
from recovery.harness.simulation.bookkeeper_bookies import BookKeeperServers
from recovery.harness.simulation.store_world import BOOKKEEPER, LOCATION, StoreWorld
from recovery.harness.simulation.world import SimulatedProcess
from recovery.harness.tier_observer import LogContents, LogProbe, file_probe
from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.store_folder import log_directory

_ROOT: Final = BookKeeperLocation.parse(BOOKKEEPER).path


def log_probes(
    world: StoreWorld, process: SimulatedProcess, containers: int
) -> dict[int, LogProbe]:
    """A check of the log of each container; of those in files in this process."""
    # Here, not in a check: what this meets in the model is no damage of a log.
    world.bookkeeper.timeline.settle(world.time.now_us)
    looks: dict[int, LogProbe] = {}
    for number in range(containers):
        if world.tier1 == "ledger":
            ledger = world.ledgers.ledger(number)
            ledger.settle(world.time.now_us)
            looks[number] = partial(LogContents, ledger.epoch, list(ledger.frames))
        elif world.tier1 == "bookkeeper":
            looks[number] = partial(_probe_bookies, world.bookkeeper, number)
        else:
            looks[number] = file_probe(log_directory(LOCATION, number), process.runtime.disk)
    return looks


def _probe_bookies(servers: BookKeeperServers, container_id: int) -> LogContents:
    path = container_path(_ROOT, container_id)
    content = servers.tree.content(path)
    if content is None or not content.data:
        return LogContents(0, ())
    record = decode_record(content.data, path)
    first_sequence, first_entry = split_address(record.truncation_address)
    checks = EntryChecks(container_id)
    frames = [
        frame
        for item in record.ledgers
        if item.sequence >= first_sequence
        for frame in _frames(
            servers, item, first_entry if item.sequence == first_sequence else 0, checks
        )
    ]
    return LogContents(record.epoch, frames)


def _frames(
    servers: BookKeeperServers, item: LedgerItem, first: int, checks: EntryChecks
) -> Iterator[LogFrame]:
    """Of one ledger, from an entry on.

    Raises DataCorruptionError if it has an end, and entries up to that are nowhere.
    """
    record = servers.records.get(item.ledger_id)
    last = item.last_entry
    if record is not None and record.state is LedgerState.CLOSED:
        if last is not None and last > record.last_entry:
            raise DataCorruptionError(
                f"ledger {item.ledger_id}", f"it ends at {record.last_entry}, and not at {last}"
            )
        last = record.last_entry if last is None else last
    held: dict[int, bytes] = {}
    for bookie in servers.bookies:
        replica = bookie.replicas.get(item.ledger_id)
        if replica is not None:
            held.update({number: entry.data for number, entry in replica.entries.items()})
    number = first
    while number in held and (last is None or number <= last):
        frame = checks.frame(item, number, memoryview(held[number]))
        if frame is not None:
            yield frame
        number += 1
    if last is not None and number <= last:
        raise DataCorruptionError(f"ledger {item.ledger_id}", f"no bookie has entry {number}")
