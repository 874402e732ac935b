"""What a compaction's driver does with catalog and mailbox: snapshots to plan from, proposals there
are, answers to them.

Rules of this file:

- an old snapshot is good enough to plan from: whatever changed since, the owner sees it and
  refuses. An owner that did not answer is reported all the same;
- a job goes on where its id has proposals: they are read, not made again.

Coroutines over ObjectStorage and Runtime; no pyspark.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa

from segmentstore.contracts.errors import ConfigError
from tier2.catalog.catalog_manifest import Manifest
from tier2.catalog.catalog_snapshots import newest_snapshots
from tier2.mailbox.mailbox import list_job, read_message
from tier2.mailbox.messages import MessageFormatError, ReplaceProposal
from tier2.object_names import MessageKey
from tier2.object_storage import ObjectStorage
from tier2.spark.compact.group import GROUP_ID_DIGITS
from tier2.spark.compact.options import CompactionOptions
from tier2.spark.compact.plan import PlanOutline
from tier2.spark.compact.ranges import LEFT, ChunkRange, dead_rows, left_rows, plan_range
from tier2.spark.reconcile.owners import Owners

MESSAGES_AT_ONCE: Final = 8
_GROUP_ID: Final = re.compile(rf"[0-9a-f]{{{GROUP_ID_DIGITS}}}")


class Prepared(NamedTuple):
    """What there is to do, and what was done before under this job's id."""

    manifests: Mapping[int, Manifest]
    """The snapshots that were planned from."""
    unresponsive: Mapping[int, str]
    """Containers that have no snapshot, or not one of now, and why."""
    proposals: Mapping[MessageKey, ReplaceProposal]


async def prepare(owners: Owners, options: CompactionOptions, *, goes_on: bool) -> Prepared:
    """The catalog as of now, as far as owners answer. With `goes_on` the job's id was there before.

    Raises CatalogFormatError, StorageUnavailableError, ConfigError for a container that the store
    does not have.
    """
    snapshots = await owners.snapshots("compact")
    manifests = {**await newest_snapshots(owners.storage, owners.store_id), **snapshots.manifests}
    containers = (
        range(max(snapshots.containers, *(number + 1 for number in manifests), 0))
        if manifests
        else range(0)
    )
    unknown = sorted(each for each in options.where_container or () if each not in containers)
    if manifests and unknown:
        raise ConfigError(
            "where-container",
            f"the store has no container {unknown[0]}; it has {len(containers)}, from 0 on",
        )
    proposals = await job_proposals(owners.storage, containers, owners.run_id) if goes_on else {}
    unresponsive = {
        number: reason
        for number, reason in snapshots.unresponsive.items()
        if options.wants_container(number)
    }
    return Prepared(dict(sorted(manifests.items())), unresponsive, proposals)


async def planned_here(
    storage: ObjectStorage,
    manifests: Mapping[int, Manifest],
    ranges: Sequence[ChunkRange],
    options: CompactionOptions,
) -> Iterable[PlanOutline]:
    """The plans of these ranges without Spark, one after another.

    Holds one range, and what ranges leave of objects.
    """
    cut = [where for where in ranges if where.parts > 1]
    left = [
        await left_rows(storage, manifests[where.container_id], where, options) for where in cut
    ]
    dead = dead_rows(pa.concat_tables([LEFT.empty_table(), *left]), options)
    found: dict[tuple[Any, Any], list[Any]] = {}
    for row in dead.to_pylist():
        found.setdefault((row["container_id"], row["part"]), []).append(row["object"])
    plans = [
        await plan_range(
            storage, manifests[where.container_id], where, options, found.get(where[:2], ())
        )
        for where in ranges
    ]
    return [plan.outline() for plan in plans]


async def job_proposals(
    storage: ObjectStorage, containers: Iterable[int], job_id: str
) -> dict[MessageKey, ReplaceProposal]:
    """All proposals of a job, by key.

    A listing for each container, two requests for each proposal.
    """
    keys = [
        entry.key
        for number in containers
        for entry in await list_job(storage, number, job_id)
        if entry.message is not None and _GROUP_ID.fullmatch(entry.key.message_id)
    ]
    return await read_proposals(storage, keys)


async def read_proposals(
    storage: ObjectStorage, keys: Sequence[MessageKey]
) -> dict[MessageKey, ReplaceProposal]:
    """Those of these proposals that are there and can be read."""
    found: dict[MessageKey, ReplaceProposal] = {}

    async def read(key: MessageKey) -> None:
        try:
            message = await read_message(storage, key)
        except MessageFormatError:
            return  # The owner says so too, and its answer is what counts.
        if isinstance(message, ReplaceProposal):
            found[key] = message

    for first in range(0, len(keys), MESSAGES_AT_ONCE):
        await asyncio.gather(*(read(key) for key in keys[first : first + MESSAGES_AT_ONCE]))
    return {key: found[key] for key in keys if key in found}
