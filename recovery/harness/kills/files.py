"""Kill files: what is done with the files of a store between its process runs, while no process of
the store runs.

Checked as they lie. Then the cache and the catalogs are removed or damaged, which must not matter.
The locks of an unresponsive owner are removed, as by an operator that believes it dead.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import segmentstore
from durablelog.catalog.checkpoint_files import LOCK_NAME as CATALOG_LOCK_NAME
from durablelog.catalog.rocksdb_key_store import RocksDbKeyStore
from durablelog.file.log_layout import LOCK_NAME as LOG_LOCK_NAME
from recovery.harness.history import History
from recovery.harness.tier_observer import file_probe, observe_tiers
from recovery.stopped_catalogs import StoppedCatalogs
from recovery.store_check import check_store
from segmentstore.config import StoreConfig
from segmentstore.contracts.errors import StoreInUseError
from segmentstore.contracts.findings import Finding, harmful_lines
from segmentstore.contracts.runtime import Runtime
from segmentstore.store_file import FILE_NAME
from segmentstore.store_folder import (
    LOCK_NAME,
    catalog_directory,
    log_directory,
    read_store_file,
)
from tier2.locations import open_object_storage

_WOUND: Final = 64
"""Bytes that are overwritten at each place."""


def check_files(
    location: Path,
    settings: Mapping[str, Any],
    history: History,
    *,
    deep: bool,
    settled: bool = False,
) -> list[str]:
    """Harmful findings in the files as they lie; both tiers are observed.

    Raises what `check_store` raises.

    `settled` as `SeenTiers` has it.
    """
    if not (location / FILE_NAME).exists():
        return []
    count = int(settings.get("containers", StoreConfig().containers))
    logs = {number: log_directory(str(location), number) for number in range(count)}
    tier2 = (location.resolve() / "tier2").as_uri()
    findings = asyncio.run(_check(str(location), logs, tier2, history, deep=deep, settled=settled))
    return list(harmful_lines(findings))


async def _check(
    location: str,
    logs: Mapping[int, str],
    tier2: str,
    history: History,
    *,
    deep: bool,
    settled: bool,
) -> list[Finding]:
    runtime = Runtime()
    file = read_store_file(location, runtime)
    assert file is not None, "it was made"
    catalogs = StoppedCatalogs(
        lambda number: catalog_directory(location, number), file.store_id, runtime, RocksDbKeyStore
    )
    findings = await check_store(logs, tier2, runtime, deep=deep, catalogs=catalogs)
    storage = open_object_storage(tier2, runtime)
    try:
        looks = {
            container_id: file_probe(directory, runtime.disk)
            for container_id, directory in logs.items()
        }
        await observe_tiers(history, looks, storage, catalogs, runtime, deep=deep, settled=settled)
    finally:
        await storage.close()
    return findings


def remove_cache(location: Path) -> None:
    """As a user does who needs room."""
    shutil.rmtree(location / "cache", ignore_errors=True)


def damage_cache(location: Path, rng: random.Random) -> None:
    """Overwrite something in every file of it."""
    _damage(location / "cache", rng)


def remove_catalogs(location: Path) -> None:
    """Their snapshots are in Tier 2."""
    shutil.rmtree(location / "catalog", ignore_errors=True)


def damage_catalogs(location: Path, rng: random.Random) -> None:
    """Overwrite something in every file of them."""
    _damage(location / "catalog", rng)


def _damage(folder: Path, rng: random.Random) -> None:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.stat().st_size:
            with path.open("r+b") as file:
                file.seek(rng.randrange(path.stat().st_size))
                file.write(rng.randbytes(_WOUND))


def expire_locks(location: Path) -> None:
    """Remove the locks of an owner that may be alive."""
    for path in (
        location / LOCK_NAME,
        *sorted((location / "log").glob(f"*/{LOG_LOCK_NAME}")),
        *sorted((location / "catalog").glob(f"*/**/{CATALOG_LOCK_NAME}")),
    ):
        path.unlink(missing_ok=True)


def is_refused(location: Path, settings: Mapping[str, Any]) -> bool:
    """True if the store cannot be opened because another owner has it open."""

    async def opens() -> bool:
        try:
            async with segmentstore.open(location, **settings):
                return False
        except StoreInUseError:
            return True

    return asyncio.run(opens())
