"""The archive for spark-submit: what tasks load is in it, equal sources give equal bytes, and it
runs without the tree.
"""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

from tests.tier2.spark.imported import imported_by_the_jobs
from tier2.spark.commands import VERBS
from tier2.spark.common.archive import (
    LAUNCHER_NAME,
    PACKAGES,
    REQUIRED_ON_EXECUTORS,
    build_archive,
    write_launcher,
)


def test_equal_sources_give_equal_bytes(tmp_path: Path) -> None:
    assert (
        build_archive(tmp_path / "a.zip").read_bytes()
        == build_archive(tmp_path / "b.zip").read_bytes()
    )


def test_it_holds_every_module_of_its_packages_and_no_caches(tmp_path: Path) -> None:
    names = zipfile.ZipFile(build_archive(tmp_path / "a.zip")).namelist()
    assert {name.partition("/")[0] for name in names} == set(PACKAGES)
    assert {module.replace(".", "/") + ".py" for module in VERBS.values()} <= set(names)
    assert not [name for name in names if not re.fullmatch(r"[a-z0-9_/]+\.(?:py|typed)", name)]


def test_the_launcher_runs_from_the_archive_alone(tmp_path: Path) -> None:
    archive = build_archive(tmp_path / "a.zip")
    launcher = write_launcher(tmp_path / LAUNCHER_NAME)
    # As spark-submit does it: the archive is in the path, before whatever is installed; -I keeps
    # this tree out of it.
    program = (
        f"import runpy, sys; sys.path.insert(0, {str(archive)!r}); sys.argv = "
        "['launcher', '--help']\n"
        f"try: runpy.run_path({str(launcher)!r}, run_name='__main__')\n"
        "finally: import tier2; print(tier2.__file__)"
    )
    shown = subprocess.run(
        [sys.executable, "-I", "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert shown.returncode == 0, shown.stderr
    assert all(verb in shown.stdout for verb in VERBS)
    assert shown.stdout.splitlines()[-1].startswith(str(archive))


def test_what_executors_need_besides_is_named() -> None:
    brought_by_others = {"pyspark", "urllib3"}
    # Where boto3 is absent, botocore alone makes the clients (tier2/s3/s3_client.py).
    # Where caio is absent, a thread syncs; no job has a log.
    optional = {"boto3", "caio"}
    imported = {name for name in imported_by_the_jobs() if not name.startswith("types_")}
    needed = imported - brought_by_others - optional
    # obstore's Arrow listing needs arro3, which nothing imports by name.
    assert needed == set(REQUIRED_ON_EXECUTORS) - {"arro3-core"}
