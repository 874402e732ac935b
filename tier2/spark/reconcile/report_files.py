"""The files of a report, on the machine of the driver: `--report FOLDER`.

Rules of this file:

- `findings.parquet` has all findings. What is a sample has another name, and takes the other one's
  place;
- where the tasks run on this machine they write all there is beside it, and it is put together a
  piece at a time.

No pyspark.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from segmentstore.contracts.errors import ConfigError
from tier2.spark.reconcile.findings import FINDINGS

FINDINGS_FILE: Final = "findings.parquet"
SAMPLE_FILE: Final = "findings-sample.parquet"
SUMMARY_FILE: Final = "summary.json"


@contextmanager
def parts_folder(folder: str) -> Iterator[Path]:
    """A new folder within `folder`, which is made if it is not there; missing afterwards.

    Raises ConfigError("report").
    """
    try:
        os.makedirs(folder, exist_ok=True)
        made = tempfile.TemporaryDirectory(prefix=".findings-", dir=os.path.abspath(folder))
    except OSError as error:
        raise ConfigError("report", f"{folder} cannot be written: {error}") from error
    with made as name:
        yield Path(name)


def write_report(
    folder: str, findings: pa.Table, summary: Mapping[str, Any], parts: Sequence[Path] | None = None
) -> None:
    """Both files of a report, instead of older ones. Raises OSError.

    `findings` are all of FINDINGS, or where the summary says that they are a sample, all of them
    are in `parts`, if known.
    """
    os.makedirs(folder, exist_ok=True)
    sampled = summary["sample"] and parts is None
    written, other = (SAMPLE_FILE, FINDINGS_FILE) if sampled else (FINDINGS_FILE, SAMPLE_FILE)
    with suppress(FileNotFoundError):
        os.unlink(os.path.join(folder, other))
    with pq.ParquetWriter(os.path.join(folder, written), FINDINGS, compression="zstd") as writer:
        if summary["sample"] and parts is not None:
            for part in parts:
                for batch in pq.ParquetFile(part).iter_batches():
                    writer.write_batch(batch)
        else:
            writer.write_table(findings)
    with open(os.path.join(folder, SUMMARY_FILE), "w", encoding="utf-8") as file:
        json.dump(summary, file, indent=2, ensure_ascii=False)
        file.write("\n")
