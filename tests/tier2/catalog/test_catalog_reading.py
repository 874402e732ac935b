"""Tables of a snapshot, read whole and in part; what is damaged is refused by name."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pyarrow as pa
import pytest

from tests.tier2.catalog.metadata_maker import make_metadata
from tests.tier2.catalog.snapshot_place import Place, run, some_metadata
from tier2.catalog.catalog_format_error import CatalogFormatError
from tier2.catalog.catalog_reading import fetch_shards, read_table
from tier2.catalog.catalog_tables import CatalogTables, build_tables


def test_a_shard_is_read_by_the_footer_and_its_own_bytes() -> None:
    async def main() -> None:
        place = Place()
        metadata = make_metadata(random.Random(2), segments=60, chunks_max=60, objects=1500)
        manifest = await place.write(metadata)
        objects = build_tables(metadata).objects
        shards = objects["shard"].to_pylist()
        file = manifest.tables["objects"]
        for shard in (0, 17, 255, range(16, 32), range(255, 15, -100), range(0), range(256)):
            numbers = range(shard, shard + 1) if isinstance(shard, int) else shard
            wanted = [
                bool(numbers) and min(numbers) <= int(str(each), 16) <= max(numbers)
                for each in shards
            ]
            before = place.storage.statistics()
            table = await read_table(
                place.storage, manifest, "objects", shard=shard, columns=["name", "blocks"]
            )
            after = place.storage.statistics()
            assert table == objects.filter(pa.array(wanted, pa.bool_())).select(["name", "blocks"])
            assert after.requests() - before.requests() <= 2
            if isinstance(shard, int):
                assert after.bytes_received - before.bytes_received < file.footer_size + 10_000

    run(main())


def test_shards_are_fetched_together_and_decoded_one_by_one() -> None:
    async def main() -> None:
        place = Place()
        metadata = make_metadata(random.Random(2), segments=60, chunks_max=60, objects=1500)
        manifest = await place.write(metadata)
        objects = build_tables(metadata).objects
        shards = [3, 4, 0x40, 0xFF]
        fetched = await fetch_shards(place.storage, manifest, shards, ["name", "size"])
        requests = place.storage.statistics().requests()
        for some in ([3], [4, 0x40], shards, [0xFF], []):
            wanted = [int(str(shard), 16) in some for shard in objects["shard"].to_pylist()]
            expected = objects.filter(pa.array(wanted, pa.bool_())).select(["name", "size"])
            assert await fetched.read(some) == expected
            assert fetched.row_count(some) == expected.num_rows
        assert place.storage.statistics().requests() == requests
        assert (await fetched.read([5])).num_rows == fetched.row_count([5]) == 0

    run(main())


def test_chunks_of_some_segments_are_read() -> None:
    async def main() -> None:
        place = Place()
        metadata = some_metadata()
        manifest = await place.write(metadata)
        tables: CatalogTables = build_tables(metadata)
        ids = sorted(metadata.segments)
        for wanted in ([], ids[:1], ids[3:9], [ids[4], 10**6], ids, ids[1:], ids[2:-1], ids[::2]):
            mask = pa.array(
                [each in wanted for each in tables.chunks["segment_id"].to_pylist()], pa.bool_()
            )
            expected = tables.chunks.filter(mask)
            assert (
                await read_table(place.storage, manifest, "chunks", segment_ids=wanted) == expected
            )
            some = await read_table(
                place.storage, manifest, "chunks", segment_ids=wanted, columns=["length"]
            )
            assert some == expected.select(["length"])
            found = await read_table(
                place.storage, manifest, "segments", segment_ids=wanted, columns=["segment_id"]
            )
            assert found["segment_id"].to_pylist() == [each for each in ids if each in wanted]

    run(main())


def test_what_cannot_be_chosen_is_refused() -> None:
    async def main() -> None:
        place = Place()
        manifest = await place.write(some_metadata())
        storage = place.storage
        with pytest.raises(ValueError, match="there is no table rows"):
            await read_table(storage, manifest, "rows")
        with pytest.raises(ValueError, match="there is no column weight"):
            await read_table(storage, manifest, "objects", columns=["weight"])
        with pytest.raises(ValueError, match="rows of chunks cannot be chosen so"):
            await read_table(storage, manifest, "chunks", shard=1)
        with pytest.raises(ValueError, match="rows of objects cannot be chosen so"):
            await read_table(storage, manifest, "objects", segment_ids=[1])
        for shards in (256, -1, range(250, 257)):
            with pytest.raises(ValueError, match="are not shards"):
                await read_table(storage, manifest, "objects", shard=shards)

    run(main())


# --- damage ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["segments", "chunks", "objects"])
def test_a_table_that_is_missing_or_other_is_refused_by_name(name: str) -> None:
    async def main() -> None:
        place = Place()
        manifest = await place.write(some_metadata())
        file = manifest.tables[name]
        whole = place.storage.bucket.objects[file.object].data
        part: dict[str, Any] = {"shard": 0x40} if name == "objects" else {"segment_ids": [1, 2, 3]}
        for options in ({}, part):
            place.damage(file.object, whole[:-1])
            with pytest.raises(CatalogFormatError, match=f"{file.object}: it is shorter"):
                await read_table(place.storage, manifest, name, **options)
            place.damage(file.object, whole[:-9] + b"x" + whole[-8:])
            with pytest.raises(CatalogFormatError, match=f"{file.object}: .*checksum"):
                await read_table(place.storage, manifest, name, **options)
            other = dataclasses.replace(file, schema_version="2.0")
            newer = dataclasses.replace(manifest, tables={**manifest.tables, name: other})
            with pytest.raises(
                CatalogFormatError, match=f"{file.object}: table: schema version 2.0"
            ):
                await read_table(place.storage, newer, name, **options)
            place.damage(file.object, whole)
            await read_table(place.storage, manifest, name, **options)
        del place.storage.bucket.objects[file.object]
        for options in ({}, part):
            with pytest.raises(CatalogFormatError, match=f"there is no object {file.object}"):
                await read_table(place.storage, manifest, name, **options)

    run(main())


def test_a_page_with_other_bytes_is_found_where_only_a_part_is_read() -> None:
    async def main() -> None:
        place = Place()
        metadata = make_metadata(random.Random(2), segments=60, chunks_max=60, objects=1500)
        manifest = await place.write(metadata)
        file = manifest.tables["objects"]
        whole = place.storage.bucket.objects[file.object].data
        rng = random.Random(6)
        found = 0
        for _ in range(20):
            damaged = bytearray(whole)
            place_of_bit = rng.randrange(4, len(whole) - file.footer_size)
            damaged[place_of_bit] ^= 1 << rng.randrange(8)
            place.damage(file.object, bytes(damaged))
            tables = []
            try:
                tables = [await read_table(place.storage, manifest, "objects", shard=range(256))]
            except CatalogFormatError:
                found += 1
            assert tables in ([], [build_tables(metadata).objects])
        assert found > 5

    run(main())
