"""The daemon of Spark's Python workers, which imports what they run before it forks them.

Spark forks a worker for each task that finds no idle one. A worker of Spark's own daemon imports
pandas, pyarrow and the jobs anew, for 1.5 s of a core. Drivers that are processes of their own
(`driver_process`) have Spark's own daemon, but for those that are killed.
"""

from __future__ import annotations

import importlib
from contextlib import suppress

from pyspark.daemon import manager

BEFORE_FORKS = (
    "pandas",
    "pyarrow.parquet",
    "pyspark.worker",
    "tier2.s3.s3_object_storage",
    "tier2.spark.data_source",
    "tier2.spark.reconcile.job",
    "tier2.spark.compact.job",
)

if __name__ == "__main__":
    for name in BEFORE_FORKS:
        # An older Spark has no Python data sources.
        with suppress(ImportError):
            importlib.import_module(name)
    manager()
