"""All findings of a run as Parquet files, written by the tasks that found them: `--findings URL`.

Rules of this file:

- a file is named by the row of work whose findings it holds, and is put once. Of two attempts of a
  task the first that ends has written it, whole;
- nothing is written without findings, and nothing outside of the run's own folder.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from segmentstore.contracts.errors import ConfigError
from segmentstore.contracts.runtime import Runtime
from tier2.locations import check_object_storage_url
from tier2.object_storage import ObjectExistsError
from tier2.spark.common.storages import open_retried
from tier2.unique_ids import new_unique_id

LAST: Final = {"item": "run"}
"""The row of work of what the driver itself has found."""


def check_findings_url(url: str, tier2_url: str, setting: str = "findings") -> None:
    """Raise ConfigError of the setting if no task could write there, or it is within the store's
    own place.
    """
    try:
        check_object_storage_url(url)
    except ConfigError as error:
        raise ConfigError(setting, f"is no place to write to: {error}") from error
    if url.startswith("memory:"):
        raise ConfigError(setting, "the memory of this process is none that tasks can write to")
    theirs, ours = urlsplit(url), urlsplit(tier2_url)
    same = (theirs.scheme, theirs.netloc) == (ours.scheme, ours.netloc)
    if same and f"{theirs.path.rstrip('/')}/".startswith(f"{ours.path.rstrip('/')}/"):
        raise ConfigError(
            setting,
            "lies within the store's Tier 2, where it would be foreign: choose another place",
        )


def part_name(run_id: str, row: Mapping[str, Any]) -> str:
    """The file of a row of work, in the run's folder."""
    places = [
        row["item"],
        *(str(row[name]) for name in ("container_id", "first", "end") if row.get(name) is not None),
    ]
    return f"{run_id}/{'-'.join(places)}.parquet"


def write_part(url: str, run_id: str, row: Mapping[str, Any], findings: pa.Table) -> None:
    """Write FINDINGS of a row of work. Raises StorageUnavailableError, ObjectStorageError."""
    sink = pa.BufferOutputStream()
    pq.write_table(findings, sink, compression="zstd")
    data = sink.getvalue()

    async def put() -> None:
        runtime = Runtime()
        storage = open_retried(url, runtime)
        try:
            await storage.put(
                part_name(run_id, row), [memoryview(data)], new_unique_id(runtime.random)
            )
        except ObjectExistsError:
            pass  # Another attempt at this row of work has written it.
        finally:
            await storage.close()

    asyncio.run(put())
