"""The archive for `spark-submit --py-files`: the packages that tasks load, and a program that
starts a verb.

Rules of this file:

- pure Python only goes into a zip; what has compiled parts (REQUIRED_ON_EXECUTORS) must be
  installed where tasks run;
- equal sources give equal bytes: names sorted, no times, so that a cluster's cache of files holds;
- no pyspark here: building an archive needs no Java.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Final

ARCHIVE_NAME: Final = "segmentstore_spark.zip"
LAUNCHER_NAME: Final = "segmentstore_spark_launcher.py"
PACKAGES: Final = ("segmentstore", "tier2")
REQUIRED_ON_EXECUTORS: Final = (
    "arro3-core",
    "botocore",
    "crc32c",
    "fsspec",
    "mmh3",
    "numpy",
    "obstore",
    "paramiko",
    "pyarrow",
    "zstandard",
)
"""By the names they are installed by. botocore, obstore and arro3-core are for s3:// alone, fsspec
for what only it knows, paramiko for its sftp://.
"""

_EPOCH: Final = (1980, 1, 1, 0, 0, 0)
"""Of every file: the earliest a zip can say."""
_LAUNCHER: Final = '''"""Starts a verb of the jobs under spark-submit."""

import sys

from tier2.spark.commands import main

sys.exit(main())
'''


def build_archive(path: Path) -> Path:
    """Write the archive to `path`, which is replaced; returns it. Raises OSError."""
    root = Path(__file__).resolve().parents[3]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(_sources(root)):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, (root / name).read_bytes())
    return path


def write_launcher(path: Path) -> Path:
    """Write the program that spark-submit runs; returns its path. Raises OSError."""
    path.write_text(_LAUNCHER, encoding="utf-8")
    return path


def _sources(root: Path) -> list[str]:
    return [
        file.relative_to(root).as_posix()
        for package in PACKAGES
        for file in (root / package).rglob("*")
        if file.is_file() and file.suffix in {".py", ".typed"}
    ]
