"""The setting `archive` of an opening: what may be set, what it costs, and openings without it."""

from __future__ import annotations

import asyncio
import itertools
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import segmentstore
from durablelog.metadata_updater import SEQUENCE_GAP
from segmentstore.config import StoreConfig
from segmentstore.contracts.byte_sizes import format_size
from segmentstore.contracts.errors import ConfigError
from segmentstore.settings_sources import merge_settings
from tests.store.archive_world import (
    DAY_S,
    MANY,
    World,
    all_archived,
    archive_of,
    archiver,
    fill,
    log_parts,
    operations_in,
)
from tests.store.harness import read_all, run, until
from tier2.archive.archive_config import ARCHIVED_FILE_BYTES, FILE_BLOCK_BYTES
from tier2.archive.archive_names import archived_data_name
from tier2.archive.ledger_offloader import ArchiveDisabledError
from tier2.s3.s3_location import parse_s3_url


def test_without_an_archive_every_call_is_refused_and_an_archive_may_come_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        world = World(tmp_path, archive_deletion_lag_s=DAY_S)
        async with world.open(archive="") as store:
            await fill(store)
            for call in (store.offload_prefix, lambda: store.remove_archived_parts(5, 0)):
                with pytest.raises(ArchiveDisabledError, match="archive"):
                    await call()
            with pytest.raises(ArchiveDisabledError, match="archive"):
                [each async for each in store.list_archived_parts()]
            assert "archive" not in store.stats()["containers"][0]
            await store.flush()
            await store.checkpoint()
        async with world.open() as store:
            expected = await fill(store)
            await all_archived(store)
            assert archive_of(store).count
            assert "is not set" not in caplog.text
        async with world.open(archive="none") as store:
            assert "is not set" not in caplog.text
            assert "archive" not in store.stats()["containers"][0]
            assert store.stats()["health"] == []
            expected = await read_all(store, "x")
            await store.flush()
            await store.checkpoint()
            assert log_parts(store)[0] > archive_of(store).last_number - 5, "the log is cut as ever"
        async with world.open() as store:
            await fill(store)
            await all_archived(store)
            assert (await read_all(store, "x")).startswith(expected)

    run(main())


def test_an_opening_without_the_setting_leaves_no_gap_in_the_archive(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        world = World(tmp_path)
        async with world.open() as store:
            await fill(store)
            await store.flush()
            await all_archived(store)
        opened_ms = world.clock.time_ms()
        async with world.open(archive="") as store:
            opened = opened_ms // 1000, world.clock.time_ms() // 1000
            assert "`archive` is not set: the log keeps what its archive has not" in caplog.text
            for _ in range(2):
                await fill(store)
                await store.flush()
                await store.checkpoint()
            await store._containers[0]._truncation.truncate_now()
            last = archive_of(store).last_number
            assert next(each for each in log_parts(store) if each > last) == last + 1
            (health,) = store.stats()["health"]
            assert "the log keeps all that its archive has not" in health
            since = datetime.fromisoformat(health.split("opening at ")[1].split(", so ")[0])
            assert opened[0] <= since.timestamp() <= opened[1]
            kept = sum(part.length for part in store._containers[0]._log.sealed_parts(last))
            assert f"{format_size(kept)} in sealed parts" in health
        async with world.open() as store:
            await all_archived(store)
            archived = {each.sequence_number for _, _, each in await operations_in(store)}
            logged = {each.sequence async for each in store.list_operations()}
            steps = {b - a for a, b in itertools.pairwise(sorted(archived | logged))}
            assert steps <= {1, SEQUENCE_GAP + 1}
            assert store.stats()["health"] == []

    run(main())


def test_an_opening_without_the_setting_keeps_the_log_though_all_parts_have_expired(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        world = World(tmp_path, archive_retention_s=DAY_S)
        async with world.open() as store:
            await fill(store)
            await store.flush()
            await all_archived(store, hot_deleted=True)
            world.clock.pass_s(2 * DAY_S)
            archiver(store)._wake.set()
            await until(lambda: archive_of(store).kept == 0)
            world.archive_fails()
            await fill(store)
        world.disk.heal()
        async with world.open(archive="", archive_retention_s=0.0) as store:
            last = archive_of(store).last_number
            await store.flush()
            await store.checkpoint()
            await store._containers[0]._truncation.truncate_now()
            assert next(each for each in log_parts(store) if each > last) == last + 1
            assert "the log keeps" in str(store.stats()["health"])

    run(main())


def test_a_long_opening_without_the_setting_holds_writers_and_loses_nothing(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        sizes = {"unflushed_bytes_max": 60_000, "offload_above_bytes": 30_000}
        world = World(tmp_path, **sizes)
        async with world.open() as store:
            await fill(store)
            await all_archived(store)
        sent = 0
        async with world.open(archive="") as store:

            async def write() -> None:
                nonlocal sent
                while True:
                    await store.append("x", bytes(150))
                    sent += 1

            writing = asyncio.create_task(write())
            await until(lambda: "held back by archive" in "\n".join(store.stats()["health"]))
            writing.cancel()
        async with world.open() as store:
            await all_archived(store)
            assert (await store.get_info("x")).length >= MANY * 160 + sent * 150
            assert store.stats()["health"] == []

    run(main())


@pytest.mark.parametrize(
    ("settings", "setting", "why"),
    [
        ({"archive_retention_s": 14_400.0}, "archive_retention_s", "together, 14400.0"),
        (
            {"archive_retention_s": 20.0, "archive_deletion_lag_s": 10.0, "offload_after_s": 10.0},
            "archive_retention_s",
            "before the log has deleted its own copy",
        ),
        ({"archive_retention_bytes": 1 << 30}, "archive_retention_bytes", "offload_above_bytes"),
        ({"unflushed_bytes_max": 1 << 30}, "offload_above_bytes", "unflushed_bytes_max"),
        ({"tier1": "memory"}, "archive", "no parts"),
    ],
)
def test_settings_that_cannot_be_together_are_refused(
    settings: dict[str, Any], setting: str, why: str
) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        StoreConfig.from_settings({"archive": "file:///a", **settings})
    assert refused.value.setting == setting
    StoreConfig.from_settings(settings)  # they say nothing without an archive


@pytest.mark.parametrize(
    ("settings", "file_mib", "block_mib"),
    [
        ({}, 64, 128),
        ({"archive": "none"}, 64, 128),
        ({"archive": "file:///a"}, 120, 128),
        ({"archive": "file:///a", "tier1": "bookkeeper://h/p"}, 120, 72),
        ({"archive": "file:///a", "log_file_bytes": 1 << 30}, 1024, 72),
        ({"archive": "file:///a", "archive_block_bytes": 5 << 20}, 120, 5),
    ],
)
def test_a_log_file_is_one_block_unless_it_is_long(
    settings: dict[str, Any], file_mib: int, block_mib: int
) -> None:
    config = StoreConfig.from_settings(settings)
    assert config.file_bytes == file_mib << 20
    block_bytes = config.archiving.block_bytes(config.tier1, config.file_bytes)
    assert block_bytes in {block_mib << 20, (block_mib << 20) - 1}


def test_a_block_of_a_log_file_is_one_request_to_s3() -> None:
    assert parse_s3_url("s3://bucket/prefix").multipart_bytes > FILE_BLOCK_BYTES
    # With the headers of entries, of frames of 190 bytes on the average.
    assert ARCHIVED_FILE_BYTES * (1 + 12 / 190) < FILE_BLOCK_BYTES


def test_a_log_file_is_archived_by_two_puts(tmp_path: Path) -> None:
    """At most $0.10 of requests for a TiB, in files of 120 MiB: no upload in parts."""

    async def main() -> None:
        world = World(tmp_path)
        async with world.open() as store:
            await fill(store)
            await all_archived(store)
            place = store._parts.archive
            assert place is not None
            puts = place.storage.statistics
            # One that was sealed meanwhile may be on its way.
            await until(lambda: puts().requests("put") == 2 * archive_of(store).count)
            parts, asked = archive_of(store).count, place.storage.statistics()
            assert parts > 5
            assert asked.requests() <= 4 * parts
            part = archive_of(store).tail[0]
            name = archived_data_name(part.ledger_id, part.uid)
            said = await place.storage.get_whole(name, 1 << 20)
            assert said.metadata["segmentstore-version"] == segmentstore.__version__

    run(main())


@pytest.mark.parametrize(("tier2", "archive"), [("", "s/tier2"), ("t", "t/"), ("t", "u/../t")])
def test_tier2_is_no_archive_however_it_is_written(
    tmp_path: Path, tier2: str, archive: str
) -> None:
    async def main() -> None:
        world = World(tmp_path, tier2=f"file://{tmp_path}/{tier2}" if tier2 else "")
        with pytest.raises(ConfigError, match="setting archive: it must be another place"):
            async with world.open(archive=f"file://{tmp_path}/{archive}"):
                pass

    run(main())


def test_the_archive_is_named_as_tier2_is(tmp_path: Path) -> None:
    config = merge_settings({"archive": tmp_path}, {}, {}, existing=False)
    assert config.archiving.archive == tmp_path.as_uri()
    with pytest.raises(ConfigError, match="archive"):
        merge_settings({"archive": "s3://k:secret@b/p"}, {}, {}, existing=False)

    async def main() -> None:
        with pytest.raises(ConfigError, match="setting archive: "):
            async with segmentstore.open(tmp_path / "s", archive="no-url"):
                pass
        assert not (tmp_path / "s").exists(), "no store is made"

    run(main())
