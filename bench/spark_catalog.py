"""A store that is only a catalog and a listing, with planted faults: what reconciliation is
measured on.

Snapshots are written by the engine's own writer, one for each container; the listing is Parquet
files of neighbouring shards, sorted by key. There are no bodies: the few objects that a job asks
for by name, to confirm what the listing says, are files of the right size with nothing in them.
Names are true: shards are what unique ids hash to.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from bench import child
from bench.child import Measured
from segmentstore.contracts.runtime import Runtime
from tier2.catalog.catalog_schema import BLOCK, CHUNKS, GARBAGE, LIVE, OBJECTS, SEGMENTS
from tier2.catalog.catalog_snapshots import encode_tables, put_snapshot
from tier2.catalog.catalog_tables import CatalogTables
from tier2.checkpoint_object import encode_checkpoint_object
from tier2.locations import open_object_storage
from tier2.object_names import SnapshotName, checkpoint_name
from tier2.object_storage import ObjectStorage
from tier2.store_markers import StoreMarkers
from tier2.unique_ids import new_copy_id, store_tag

CONTAINERS = 8
PER_SEGMENT = 250
"""Chunks of a segment, each in an object of its own."""
PROCESSES = 2
FILES = 16
"""Of the listing."""
LISTED = ("missing", "wrong_size", "orphan", "in_flight", "waiting_for_deletion", "foreign")
KINDS = (*LISTED, "gap", "overlap")
MIB = 1 << 20
_STORE_ID = "6f3a2b64-0b0c-4f0e-9d55-2f1d64a0c8f1"
_EPOCH = 7
_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS
_HEADER_BYTES = 96
_NAME_BYTES = 67

_Numbers = NDArray[np.int64]


class _Names(NamedTuple):
    """Names of objects, sorted; and their shards' numbers."""

    names: pa.Array[Any]
    shards: NDArray[np.uint8]


class _Chunks(NamedTuple):
    """A row a chunk, in the order of segments."""

    segments: _Numbers
    starts: _Numbers
    lengths: _Numbers
    """As the objects have them; the catalog's may differ by a planted byte."""
    reported: _Numbers
    objects: _Numbers
    """Which of the sorted names holds it."""


def _array(values: Any, kind: pa.DataType | None = None, *, mask: Any = None) -> Any:
    """An array; the stubs know little of NumPy."""
    return pa.array(values, kind, mask=mask)


def url_of(directory: str) -> str:
    """Where Tier 2 of the imagined store is."""
    return (Path(directory) / "tier2").absolute().as_uri()


def listing_of(directory: str) -> str:
    """Where its listing is."""
    return str(Path(directory) / "listing")


def make(
    directory: Path,
    objects: int,
    faults: int,
    *,
    containers: int = CONTAINERS,
    per_segment: int = PER_SEGMENT,
) -> None:
    """Write catalog and listing of about `objects` objects, with `faults` of each kind, in two
    processes.

    `objects` is a multiple of `containers * per_segment`, and each container has two segments for
    each of its faults. For 10 M about a minute, and 2 GiB on disk; some 600 bytes of memory for
    each object of a container, in both processes.
    """
    for name in ("tier2", "listing"):
        (directory / name).mkdir()
    now_ms = int(time.time() * 1000)
    with ThreadPoolExecutor(PROCESSES) as pool:
        arguments_of = [
            {
                "directory": str(directory),
                "container_id": number,
                "objects": objects // containers,
                "faults": len(range(number, faults, containers)),
                "now_ms": now_ms,
                "containers": containers,
                "per_segment": per_segment,
            }
            for number in range(containers)
        ]
        list(
            pool.map(
                lambda arguments: child.call(__name__, "write_container", arguments), arguments_of
            )
        )
        files = [
            {"directory": str(directory), "number": number, "now_ms": now_ms}
            for number in range(FILES)
        ]
        list(pool.map(lambda arguments: child.call(__name__, "write_listing", arguments), files))


def planted(directory: str) -> set[tuple[Any, ...]]:
    """What a report must say, as `found` gives it."""
    found: set[tuple[Any, ...]] = set()
    for faults in _faults(directory):
        for kind in LISTED:
            found |= {(kind, name) for name in faults[kind]}
        for kind in ("gap", "overlap"):
            found |= {(kind, *place) for place in faults[kind]}
    return found


def found(findings: pa.Table) -> list[tuple[Any, ...]]:
    """What a report says: kind and object, or kind, container, segment and offset."""
    return [
        (row["kind"], row["container_id"], row["segment_id"], row["start_offset"])
        if row["kind"] in {"gap", "overlap"}
        else (row["kind"], row["object"])
        for row in findings.to_pylist()
    ]


def _faults(directory: str) -> Iterator[dict[str, Any]]:
    for path in sorted(Path(directory).glob("faults-*.json")):
        yield json.loads(path.read_text(encoding="utf-8"))


# --- a container ----------------------------------------------------------------------------------


def write_container(
    directory: str,
    container_id: int,
    objects: int,
    faults: int,
    now_ms: int,
    containers: int = CONTAINERS,
    per_segment: int = PER_SEGMENT,
) -> Measured:
    """The snapshot of one container, and beside it what is wrong with it."""
    rng = np.random.default_rng(container_id)
    # Besides the live ones: garbage, and what is in the listing alone.
    drawn = _names(rng, container_id, objects + 3 * faults)
    others, drawn_rows = rng.permutation(len(drawn.names)), np.arange(len(drawn.names))
    garbage, orphans, young = (
        np.sort(others[start * faults : (start + 1) * faults]) for start in range(3)
    )
    live = np.setdiff1d(drawn_rows, others[: 3 * faults], assume_unique=True)
    chunks = _chunks(rng, live, per_segment)
    planted_kinds = _plant_chunks(rng, container_id, chunks, faults, per_segment)
    sizes = np.full(len(drawn.names), 5 * MIB, np.int64)
    sizes[chunks.objects] = chunks.lengths + _HEADER_BYTES
    differing = rng.permutation(live)[: 2 * faults]
    missing, wrong = differing[:faults], differing[faults:]

    def named(rows: _Numbers) -> list[str]:
        names: list[Any] = drawn.names.take(_array(rows)).to_pylist()
        return names

    planted_kinds |= {
        "missing": named(missing),
        "wrong_size": dict(zip(named(wrong), (sizes[wrong] - 1).tolist(), strict=True)),
        "orphan": named(orphans),
        "in_flight": named(young),
        "waiting_for_deletion": named(garbage),
        "foreign": [_foreign(container_id, number) for number in range(faults)],
    }
    Path(directory, f"faults-{container_id}.json").write_text(
        json.dumps(planted_kinds), encoding="utf-8"
    )
    _write_bodies(Path(directory) / "tier2", planted_kinds)
    here = np.sort(np.concatenate([live, garbage]))
    tables = CatalogTables(
        _segment_table(chunks, now_ms, per_segment),
        _chunk_table(chunks, drawn.names, sizes, now_ms),
        _object_table(chunks, drawn, sizes, here, garbage, now_ms),
    )
    asyncio.run(_put(directory, container_id, tables, now_ms, containers))
    return {"objects": len(here)}


def _names(rng: np.random.Generator, container_id: int, count: int) -> _Names:
    ids = rng.integers(0, 2**64, (count, 2), np.uint64).astype(">u8")
    # The store's own: an orphan without its tag is of unknown owner.
    ids[:, 0] = int.from_bytes(store_tag(_STORE_ID), "big")
    ids = ids[np.argsort(ids[:, 1])]
    data = ids.tobytes()
    firsts = b"".join(
        [sha256(data[place : place + 16]).digest()[:1] for place in range(0, len(data), 16)]
    )
    shards = np.frombuffer(firsts, np.uint8)
    order = np.argsort(shards, kind="stable")
    shards = shards[order]
    fixed = f"xx/{container_id:08x}/{_EPOCH:016x}/flush-".encode()
    rows = np.empty((count, _NAME_BYTES), np.uint8)
    rows[:, : len(fixed)] = np.frombuffer(fixed, np.uint8)
    pairs = np.frombuffer(
        "".join(f"{shard:02x}" for shard in range(256)).encode(), np.uint8
    ).reshape(256, 2)
    rows[:, :2] = pairs[shards]
    rows[:, len(fixed) :] = np.frombuffer(data.hex().encode(), np.uint8).reshape(count, 32)[order]
    ends = np.arange(count + 1, dtype=np.int32) * _NAME_BYTES
    buffers = [None, pa.py_buffer(ends.data), pa.py_buffer(rows.data)]
    return _Names(pa.Array.from_buffers(pa.string(), count, buffers), shards)


def _chunks(rng: np.random.Generator, live: _Numbers, per_segment: int) -> _Chunks:
    segments = np.arange(len(live)) // per_segment
    lengths = rng.integers(MIB, 64 * MIB, len(live))
    starts = np.cumsum(lengths) - lengths
    starts -= starts[segments * per_segment]
    return _Chunks(segments, starts, lengths, lengths.copy(), rng.permutation(live))


def _plant_chunks(
    rng: np.random.Generator, container_id: int, chunks: _Chunks, faults: int, per_segment: int
) -> dict[str, Any]:
    """A chunk that ends a byte early, or late, within segments of which no two have a fault."""
    segments = rng.permutation(int(chunks.segments[-1]) + 1)[: 2 * faults]
    rows = segments * per_segment + rng.integers(0, per_segment - 1, 2 * faults)
    early, late = rows[:faults], rows[faults:]
    chunks.reported[early] -= 1
    chunks.reported[late] += 1
    ends = chunks.starts + chunks.lengths

    def places(some: _Numbers, offsets: _Numbers) -> list[list[int]]:
        pairs = zip(chunks.segments[some].tolist(), offsets.tolist(), strict=True)
        return [[container_id, segment, offset] for segment, offset in pairs]

    return {"gap": places(early, ends[early] - 1), "overlap": places(late, ends[late])}


def _foreign(container_id: int, number: int) -> str:
    """By turns in no shard and in one."""
    return (
        f"backup/{container_id}-{number}.tar"
        if number % 2
        else f"{number % 256:02x}/{container_id}-{number}.txt"
    )


def _write_bodies(root: Path, faults: dict[str, Any]) -> None:
    """Of what is asked for by name and is there: sizes alone."""
    for name, size in [
        *faults["wrong_size"].items(),
        *((name, 5 * MIB) for name in faults["orphan"]),
    ]:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        with (root / name).open("wb") as file:
            file.truncate(size)


def _segment_table(chunks: _Chunks, now_ms: int, per_segment: int) -> pa.Table:
    count = int(chunks.segments[-1]) + 1
    held = _array(np.add.reduceat(chunks.lengths, np.arange(count) * per_segment))
    then = _array(np.full(count, now_ms - 20 * _DAY_MS))
    columns: list[Any] = [
        _array(np.arange(count)),
        _array([f"bench/{number}" for number in range(count)]),
        _array(np.zeros(count, np.int64)),
        held,
        held,
        _array(np.zeros(count, np.bool_)),
        pa.nulls(count, pa.int64()),
        then,
        then,
        _array(np.full(count, per_segment)),
    ]
    return pa.Table.from_arrays(columns, schema=SEGMENTS)


def _chunk_table(chunks: _Chunks, names: pa.Array[Any], sizes: _Numbers, now_ms: int) -> pa.Table:
    columns: list[Any] = [
        _array(chunks.segments),
        _array(chunks.starts),
        _array(chunks.reported),
        names.take(_array(chunks.objects)),
        _array(np.zeros(len(chunks.segments), np.int64)),
        _array(chunks.segments),
        _array(chunks.starts),
        _array(sizes[chunks.objects]),
        _array(_created(chunks.objects, now_ms)),
    ]
    return pa.Table.from_arrays(columns, schema=CHUNKS)


def _created(rows: _Numbers, now_ms: int) -> _Numbers:
    """A time for each object, ten to twenty days ago."""
    return now_ms - 10 * _DAY_MS - rows * 7919 % (10 * _DAY_MS)


def _object_table(
    chunks: _Chunks, drawn: _Names, sizes: _Numbers, here: _Numbers, garbage: _Numbers, now_ms: int
) -> pa.Table:
    chunk_of = np.full(len(drawn.names), -1)
    chunk_of[chunks.objects] = np.arange(len(chunks.objects))
    rows = chunk_of[here]
    held = rows[rows >= 0]
    zeros = np.zeros(len(held), np.int64)
    fields = (
        zeros,
        chunks.reported,
        chunks.segments,
        chunks.starts,
        chunks.segments,
        chunks.starts,
    )
    block = [_array(field if field is zeros else field[held]) for field in fields]
    ends = np.concatenate([[0], np.cumsum(rows >= 0)]).astype(np.int32)
    blocks = pa.ListArray.from_arrays(
        _array(ends), pa.StructArray.from_arrays(block, fields=list(BLOCK))
    )
    dead = np.isin(here, garbage)
    columns: list[Any] = [
        _array([f"{shard:02x}" for shard in range(256)]).take(_array(drawn.shards[here])),
        drawn.names.take(_array(here)),
        _array(sizes[here]),
        _array(_created(here, now_ms)),
        _array([LIVE, GARBAGE]).take(_array(dead.astype(np.int8))),
        _array(np.full(len(here), now_ms - _HOUR_MS), mask=~dead),
        _array(np.where(dead, 0, sizes[here])),
        blocks,
    ]
    return pa.Table.from_arrays(columns, schema=OBJECTS)


async def _put(
    directory: str, container_id: int, tables: CatalogTables, now_ms: int, containers: int
) -> None:
    runtime = Runtime()
    storage = open_object_storage(url_of(directory), runtime)
    try:
        await put_snapshot(
            storage,
            runtime,
            store_id=_STORE_ID,
            containers=containers,
            snapshot=SnapshotName(
                container_id, _EPOCH, 1_000_000, new_copy_id(_STORE_ID, runtime.random)
            ),
            time_ms=now_ms,
            encoded=encode_tables(tables),
        )
        await _put_copy(storage, runtime, container_id, now_ms, containers)
        # One process for each container: the first to come puts the marker, the others find it.
        await StoreMarkers(storage, _STORE_ID).ensure()
    finally:
        await storage.close()


async def _put_copy(
    storage: ObjectStorage, runtime: Runtime, container_id: int, now_ms: int, containers: int
) -> None:
    """The metadata copy that `restore` lives from: whole, as far as a reconciliation inspects
    it.
    """
    sequence_number = 1_000_000
    store_id = UUID(_STORE_ID)
    unique_id = new_copy_id(store_id, runtime.random)
    parts = encode_checkpoint_object(
        store_id=store_id,
        containers=containers,
        container_id=container_id,
        epoch=_EPOCH,
        sequence_number=sequence_number,
        time_ms=now_ms,
        blob=b"metadata",
    )
    await storage.put(
        checkpoint_name(container_id, _EPOCH, sequence_number, unique_id), parts, unique_id
    )


# --- the listing ----------------------------------------------------------------------------------


def write_listing(directory: str, number: int, now_ms: int) -> Measured:
    """One file of the listing: the objects of its shards in all containers, but for what is wrong
    with them.
    """
    shards = range(256 * number // FILES, 256 * (number + 1) // FILES)
    faults = list(_faults(directory))
    alone = _listed_alone(faults, now_ms)
    absent = _array([name for each in faults for name in each["missing"]], pa.string())
    wrong = {name: size for each in faults for name, size in each["wrong_size"].items()}
    files = [
        pq.ParquetFile(path)
        for path in sorted(Path(directory, "tier2", "catalog").glob("*/*/objects.parquet"))
    ]
    rows = 0
    with pq.ParquetWriter(
        Path(directory, "listing", f"{number:02d}.parquet"), _LISTING, compression="zstd"
    ) as out:
        for shard in shards:
            prefix = f"{shard:02x}/"
            extra = alone.filter(pc.starts_with(alone["key"], prefix))
            table = pa.concat_tables([*_of_shard(files, shard), extra])
            table = table.filter(pc.invert(pc.is_in(table["key"], value_set=absent)))
            table = _resized(
                table, {name: size for name, size in wrong.items() if name.startswith(prefix)}
            )
            out.write_table(table.sort_by("key"))
            rows += table.num_rows
        if number == FILES - 1:
            out.write_table(alone.filter(pc.starts_with(alone["key"], "backup/")))
    return {"rows": rows}


_FIELDS: list[pa.Field[Any]] = [
    pa.field("key", pa.string()),
    pa.field("size", pa.int64()),
    pa.field("modified_ms", pa.int64()),
]
_LISTING = pa.schema(_FIELDS)


def _of_shard(files: Sequence[pq.ParquetFile], shard: int) -> Iterator[pa.Table]:
    for file in files:
        for group in range(file.metadata.num_row_groups):
            statistics: Any = file.metadata.row_group(group).column(0).statistics
            if statistics.min == f"{shard:02x}":
                table = file.read_row_group(
                    group, ["name", "size", "created_ms"], use_threads=False
                )
                yield pa.Table.from_arrays(table.columns, schema=_LISTING)


def _listed_alone(faults: Sequence[dict[str, Any]], now_ms: int) -> pa.Table:
    """What no catalog has."""
    ages = {"orphan": 10 * _DAY_MS, "in_flight": _HOUR_MS, "foreign": 10 * _DAY_MS}
    rows = [
        {"key": name, "size": 5 * MIB, "modified_ms": now_ms - age}
        for kind, age in ages.items()
        for each in faults
        for name in each[kind]
    ]
    return pa.Table.from_pylist(rows, schema=_LISTING)


def _resized(table: pa.Table, sizes: dict[str, int]) -> pa.Table:
    if not sizes:
        return table
    column = table["size"].to_numpy().copy()
    places = pc.index_in(
        _array(list(sizes), pa.string()), value_set=table["key"].combine_chunks()
    ).to_numpy()
    column[places] = list(sizes.values())
    return table.set_column(1, _LISTING.field(1), _array(column))
