"""Kill files: what is done with the files of a store between its lives, while no process of the store runs.

Checked as they lie; the cache removed or damaged, which must not matter; the locks of an owner that does not answer
removed, as an operator does who believes it dead.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import segmentstore
from durablelog.file.log_layout import LOCK_NAME as LOG_LOCK_NAME
from recovery.store_check import check_store
from segmentstore.config import FILE_NAME, StoreConfig
from segmentstore.contracts.errors import StoreInUseError
from segmentstore.contracts.runtime import Runtime
from segmentstore.store_files import LOCK_NAME, log_directory

_WOUND: Final = 64
"""Bytes that are overwritten at each place."""


def check_files(location: Path, settings: Mapping[str, Any], *, deep: bool) -> list[str]:
    """Harmful findings in the files as they lie. Raises what `check_store` raises."""
    if not (location / FILE_NAME).exists():
        return []
    count = int(settings.get("containers", StoreConfig().containers))
    logs = {number: log_directory(str(location), number) for number in range(count)}
    findings = asyncio.run(check_store(logs, (location.resolve() / "tier2").as_uri(), Runtime(), deep=deep))
    return [f"{each.kind} {each.place}: {each.detail}" for each in findings if each.severity.value == "harmful"]


def remove_cache(location: Path) -> None:
    """As somebody does who needs room."""
    shutil.rmtree(location / "cache", ignore_errors=True)


def damage_cache(location: Path, chance: random.Random) -> None:
    """Overwrite something in every file of it."""
    for path in sorted((location / "cache").rglob("*")):
        if path.is_file() and path.stat().st_size:
            with path.open("r+b") as file:
                file.seek(chance.randrange(path.stat().st_size))
                file.write(chance.randbytes(_WOUND))


def expire_locks(location: Path) -> None:
    """Remove the locks of an owner that may be alive."""
    for path in (location / LOCK_NAME, *sorted((location / "log").glob(f"*/{LOG_LOCK_NAME}"))):
        path.unlink(missing_ok=True)


def is_refused(location: Path, settings: Mapping[str, Any]) -> bool:
    """True if the store cannot be opened because somebody has it."""

    async def opens() -> bool:
        try:
            async with segmentstore.open(location, **settings):
                return False
        except StoreInUseError:
            return True

    return asyncio.run(opens())
