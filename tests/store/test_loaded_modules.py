"""Which modules an import of the package loads, and which an opening of a store does: what only
others need costs them nothing.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_importing_the_package_loads_no_engine() -> None:
    program = (
        "import sys, segmentstore\n"
        "segmentstore.AttributeUpdate, segmentstore.SegmentNotFoundError\n"
        "heavy = {'rocksdict', 'sortedcontainers', 'durablelog', 'tier2', 'readindex', "
        "'storagewriter', 'typer'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, check=True, timeout=120
    )
    assert result.stdout == b"[]\n"


def test_importing_what_opens_a_store_loads_no_feature_that_a_plain_store_never_uses() -> None:
    """Each module of these is loaded by its first use. Of the standard library, the largest that a
    dependency, or we, once brought along.
    """
    others = (
        "argparse",
        "difflib",
        "durablelog.bookkeeper.bookkeeper_location",
        "durablelog.bookkeeper.ledger_store",
        "durablelog.file.file_log_view",
        "durablelog.memory_data_log",
        "email",
        "importlib.metadata",
        "recovery.background_scrub",
        "recovery.scrub",
        "segmentstore.container.block_listing",
        "segmentstore.container.log_listing",
        "segmentstore.contracts.findings",
        "segmentstore.contracts.reports",
        "segmentstore.contracts.store_hosts",
        "segmentstore.garbage",
        "segmentstore.options",
        "shutil",
        "storagewriter.garbage_pass",
        "tempfile",
        "tier2.archive.archive_place",
        "tier2.memory_object_storage",
        "tier2.s3",
    )
    program = (
        f"import sys, segmentstore.opening\nprint(sorted(set({others!r}) & set(sys.modules)))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, check=True, timeout=120
    )
    assert result.stdout == b"[]\n"


def test_opening_a_store_on_files_loads_nothing_that_only_others_need(tmp_path: Path) -> None:
    program = (
        "import asyncio, sys, segmentstore\n"
        "async def main():\n"
        "    async with segmentstore.open(sys.argv[1]) as store:\n"
        "        await store.create_segment('x')\n"
        "        await store.append('x', b'data')\n"
        "asyncio.run(main())\n"
        "others = ('boto3', 'botocore', 'kazoo', 'pyarrow', 'pyspark', 'py4j', 'typer', 'rich', "
        "'prometheus_client', 'durablelog.bookkeeper.bookkeeper_clients', "
        "'durablelog.bookkeeper.bookkeeper_log_factory', 'durablelog.bookkeeper.gateway', "
        "'segmentstore.cluster', 'segmentstore.container.log_archiver', 'segmentstore.controller', "
        "'segmentstore.tables', 'tier2.archive.object_ledger_offloader', 'tier2.catalog', "
        "'tier2.s3.s3_object_storage', 'tier2.spark')\n"
        "print(sorted(set(others) & set(sys.modules)))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "s")],
        cwd=ROOT,
        capture_output=True,
        check=True,
        timeout=240,
    )
    assert result.stdout == b"[]\n"
