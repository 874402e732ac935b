"""What Spark runs over batches of WORK: verdicts, as RESULTS.

The rules are those of `work`. No pyspark: the functions take and give Arrow batches.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from segmentstore.contracts.runtime import Runtime
from tier2.catalog.catalog_manifest import Manifest
from tier2.object_storage import ObjectStorage
from tier2.spark.common.arrow_rows import unpack
from tier2.spark.common.storages import opened
from tier2.spark.reconcile.coverage import Border
from tier2.spark.reconcile.coverage_tasks import cover_range, cover_segment
from tier2.spark.reconcile.findings import FINDINGS, Suspects
from tier2.spark.reconcile.findings_files import write_part
from tier2.spark.reconcile.folder_tasks import check_copies, check_folders
from tier2.spark.reconcile.found_classes import count_classes, sample
from tier2.spark.reconcile.marks import (
    HashedNames,
    marks_of,
    names_of,
    pack_shards,
    unpack_shards,
)
from tier2.spark.reconcile.orphan_requests import ask_owners
from tier2.spark.reconcile.tasks import (
    CheckInputs,
    check_missing,
    check_objects,
    check_suspects,
    found_by_checks,
)
from tier2.spark.reconcile.work import BORDER, FOUND, MISSING, MISSING_MARKS, RESULTS, Site

_Batches = Iterator[pa.RecordBatch]


def verdict_task(site: Site, by: CheckInputs) -> Callable[[_Batches], _Batches]:
    """Over batches of WORK: RESULTS.

    One storage for all rows: its connections are opened once, and what speaks S3 loaded.
    """

    def run(batches: _Batches) -> _Batches:
        with asyncio.Runner() as runner:
            executor = Runtime().executor("checksums", 1)
            storage = runner.run(opened(site.url))
            try:
                for batch in batches:
                    for row in batch.to_pylist():
                        results = runner.run(_one(storage, site, by, row, executor))
                        yield from shown(site, row, results).to_batches()
            finally:
                runner.run(storage.close())
                executor.shutdown()

    return run


def shown(site: Site, row: Mapping[str, Any], results: pa.Table) -> pa.Table:
    """RESULTS of a row of work, the findings counted by class and as many of them as may be shown;
    all are written.
    """
    counted = pc.is_valid(results["counter"])
    findings = results.filter(pc.invert(counted))
    if not findings.num_rows:
        return results
    if site.findings_url:
        write_part(
            site.findings_url, site.run_id, row, findings.select(FINDINGS.names).cast(FINDINGS)
        )
    classes = [
        {**each._asdict(), "counter": FOUND, "count": number}
        for each, number in count_classes(findings).items()
    ]
    if site.shown is not None:
        findings = sample(findings, site.shown)
    return pa.concat_tables(
        [findings, results.filter(counted), pa.Table.from_pylist(classes, schema=RESULTS)]
    )


async def _one(
    storage: ObjectStorage, site: Site, by: CheckInputs, row: Mapping[str, Any], executor: Executor
) -> pa.Table:
    shards = range(row["first"] or 0, row["end"] or 0)
    if row["item"] == "judge":
        suspects = Suspects(unpack(row["before"]), unpack(row["listed"]))
        if row["names"] is not None:
            names = HashedNames(each for _, each in unpack_shards(row["names"]))
            by = by._replace(place=by.place._replace(open_names=names))
        return await results_of_suspects(storage, site, by, suspects, shards, executor)
    if row["item"] == MISSING:
        return _results(await _check_again(storage, row, by))
    if row["item"] == "cover":
        manifest = by.after[row["container_id"]]
        covered = await cover_range(storage, manifest, row["first"], row["end"], site.run_id)
        counts = {"chunks": covered.chunks}
        return _results(
            covered.findings, counts, container_id=row["container_id"], borders=covered.borders
        )
    if row["item"] == "folders":
        return _results(await check_folders(storage, site.url, by.place, site.run_id, executor))
    if row["item"] == "copies":
        return _results(
            await check_copies(storage, shards, by.place, site.run_id, bodies=site.bodies)
        )
    if row["item"] == "walk":
        return _results(
            await cover_segment(storage, by.after[row["container_id"]], row["first"], site.run_id)
        )
    findings, checked = await check_objects(
        storage,
        by.after,
        shards,
        site.run_id,
        bodies=site.bodies,
        at_once=site.objects_at_once,
        executor=executor,
    )
    counts = {
        "looked_into": checked.objects,
        "blocks": checked.blocks,
        "bytes_read": checked.bytes_read,
    }
    return await _with_missing(
        storage, by, _results(findings, counts), checked.missing, site.missing_shown
    )


async def results_of_suspects(
    storage: ObjectStorage,
    site: Site,
    by: CheckInputs,
    suspects: Suspects,
    shards: range,
    executor: Executor,
) -> pa.Table:
    """RESULTS of `judge` over the suspects of some shards, which objects need a third check, and
    what owners are asked.
    """
    findings, missing = await check_suspects(storage, suspects, shards, by)
    if site.checks_objects:
        findings = await found_by_checks(
            storage,
            findings,
            shards,
            by,
            bodies=site.bodies,
            at_once=site.objects_at_once,
            executor=executor,
        )
    results = await _with_missing(storage, by, _results(findings), missing, site.missing_shown)
    if site.asking is None:
        return results
    asked = await ask_owners(storage, site.asking, site.run_id, findings, shards)
    return pa.concat_tables([results, pa.Table.from_pylist(asked, schema=RESULTS)])


async def _with_missing(
    storage: ObjectStorage, by: CheckInputs, results: pa.Table, missing: Collection[str], most: int
) -> pa.Table:
    """RESULTS, with the names of what was missing; of many with marks of them."""
    if len(missing) <= most:
        return pa.concat_tables([results, _results(FINDINGS.empty_table(), missing=missing)])
    marks = pack_shards(
        (await marks_of(storage, by.after, pa.array(sorted(missing), pa.string()))).items()
    )
    row = {
        "counter": MISSING_MARKS,
        "count": len(missing),
        "evidence": base64.b64encode(marks).decode(),
    }
    return pa.concat_tables([results, pa.Table.from_pylist([row], schema=RESULTS)])


async def _check_again(storage: ObjectStorage, row: Mapping[str, Any], by: CheckInputs) -> pa.Table:
    """FINDINGS of a row MISSING: marks over B, those over A that were checked before, and names.

    A shard at a time.
    """
    named: list[str] = json.loads(row["names"])
    findings = [FINDINGS.empty_table()]
    for shard in range(row["first"], row["end"]):
        missing = await _marked(storage, by.before, shard, row["before"])
        checked = await _marked(storage, by.first, shard, row["listed"])
        left = sorted(
            (missing | {name for name in named if name.startswith(f"{shard:02x}/")}) - checked
        )
        if left:
            findings.append(await check_missing(storage, left, by))
    return pa.concat_tables(findings)


async def _marked(
    storage: ObjectStorage, manifests: Mapping[int, Manifest], shard: int, marks: bytes
) -> set[str]:
    some = [bits for each, bits in unpack_shards(marks) if each == shard]
    return set(map(str, (await names_of(storage, manifests, shard, some)).to_pylist()))


def borders_of(counters: Iterable[Mapping[str, Any]]) -> dict[int, list[Border]]:
    """The borders in rows of RESULTS, by container."""
    found: dict[int, list[Border]] = {}
    for row in counters:
        if row["counter"] == BORDER:
            found.setdefault(row["container_id"], []).append(Border(*json.loads(row["evidence"])))
    return found


def _results(
    findings: pa.Table,
    counts: Mapping[str, int] | None = None,
    missing: Iterable[str] = (),
    *,
    container_id: int | None = None,
    borders: Iterable[Border] = (),
) -> pa.Table:
    rows = findings
    for name in ("counter", "count"):
        rows = rows.append_column(name, pa.nulls(findings.num_rows, RESULTS.field(name).type))
    more: list[dict[str, Any]] = [
        {"counter": name, "count": count, "container_id": container_id}
        for name, count in (counts or {}).items()
    ]
    more += [{"counter": MISSING, "count": 1, "object": name} for name in missing]
    more += [
        {
            "counter": BORDER,
            "count": 1,
            "container_id": container_id,
            "evidence": json.dumps(border),
        }
        for border in borders
    ]
    return pa.concat_tables([rows.cast(RESULTS), pa.Table.from_pylist(more, schema=RESULTS)])
