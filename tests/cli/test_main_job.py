"""The main job on a few files: killed, recovered, read back, compared; and it says so when a byte
differs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from durablelog.bookkeeper.cluster.local_cluster import LocalCluster
from segmentstore.cli.exit_codes import ExitCode
from segmentstore.cli.ingest_plan import plan_files
from segmentstore.cli.main_job import MainJob, count_lines, default_input
from tests.cli.shell import ROOT
from tests.support.suites import slow


@pytest.fixture
def text(tmp_path: Path) -> Path:
    folder = tmp_path / "text"
    folder.mkdir()
    for index in range(30):
        body = b"".join(b"%d %d\n" % (index, line) for line in range(40 * index))
        (folder / f"{index}.txt").write_bytes(body + b"end" * (index % 2))
    return folder


def run(*arguments: object) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "segmentstore.cli.main_job", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, check=False)


def test_all_bytes_equal(text: Path, tmp_path: Path) -> None:
    done = run(text, "--folder", tmp_path / "run", "--writers", 4, "--json")
    assert (done.returncode, done.stderr) == (ExitCode.DONE, b"")
    said = json.loads(done.stdout)
    assert said["all_bytes_equal"] is True
    assert (said["files"], said["failures"]) == (30, [])
    assert said["recovered_lines"] >= said["killed_after_lines"] >= 0.4 * said["lines"]
    assert said["operations_replayed"] > 0
    assert said["tier2_bytes"] >= said["bytes"]
    assert said["fetched_from_tier2"] >= said["bytes"]
    assert said["log_bytes_after"] < said["log_bytes_before"]


@slow(3)
def test_a_table_for_people(text: Path, tmp_path: Path) -> None:
    done = run(text / "3.txt", "--folder", tmp_path / "run")
    assert done.returncode == ExitCode.DONE
    assert "all bytes equal" in done.stdout.decode()


class Tampered(MainJob):
    """Changes one file after it has been ingested: as good as a wrong byte in the store."""

    def _read_back(self) -> None:
        path = self._planned[-1].path
        path.write_bytes(path.read_bytes().replace(b"1", b"2"))
        super()._read_back()


def test_a_byte_that_differs_is_found(text: Path, tmp_path: Path) -> None:
    outcome = Tampered(plan_files([text]), tmp_path / "run", 4, lambda _: None).run()
    assert not outcome.all_bytes_equal
    assert outcome.failures == ["segment 9.txt differs"]


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    done = run(tmp_path / "absent")
    assert done.returncode == ExitCode.REFUSED
    assert b"neither a file nor a directory" in done.stderr


def test_the_default_input_is_real_text() -> None:
    planned = default_input()
    assert len(planned) > 100
    assert all(
        item.path.suffix == ".py" and "site-packages" not in item.path.parts for item in planned
    )


def test_lines_are_counted_as_they_are_ingested(tmp_path: Path) -> None:
    for name, data in {"a": b"", "b": b"x", "c": b"x\n", "d": b"\n\n", "e": b"x\ny"}.items():
        (tmp_path / name).write_bytes(data)
    assert count_lines(plan_files([tmp_path])) == 0 + 1 + 1 + 2 + 2


@slow(40)
@pytest.mark.timeout(400)
def test_all_bytes_equal_on_bookkeeper(text: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = run(text, "--folder", folder, "--writers", 4, "--tier1", "bookkeeper", "--json")
    assert (done.returncode, done.stderr) == (ExitCode.DONE, b"")
    said = json.loads(done.stdout)
    assert said["all_bytes_equal"] is True
    assert said["failures"] == []
    assert said["tier1"] == "BookKeeper, 3 bookies on this machine, 3/3/2"
    assert said["recovered_lines"] >= said["killed_after_lines"] >= 0.4 * said["lines"]
    assert said["log_bytes_after"] < said["log_bytes_before"]
    assert "bookkeeper://127.0.0.1:" in (folder / "store" / "store.toml").read_text(
        encoding="utf-8"
    )
    # Nothing of the cluster is left running.
    assert [
        service.process_id for service in LocalCluster(folder / "cluster").status().services
    ] == [None] * 4
