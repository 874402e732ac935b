"""Run the tests marked `spark_versions` in each release of Spark, in an environment of its own.

    python -m tests.tier2.spark.check_versions [release ...]

The environments are made below var/spark-versions at the first call (1.3 GB each) and kept; all but
Spark, and what it holds back, has the pins of constraints.txt. Its last words are a table of what
became of each group in each release. Ends with 1 if a test fails, or a group that a release has
was not run there as a whole.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, NamedTuple

from tests.tier2.spark.version_groups import MARK, Count, counted, faults, table
from tests.wheel.check_wheel import find

ROOT: Final = Path(__file__).resolve().parents[3]
FOLDER: Final = ROOT / "var" / "spark-versions"
TIMEOUT_S: Final = 3600
TOOLS: Final = (
    *(
        "flask",
        "flask-cors",
        "hypothesis",
        "moto[s3]",
        "pytest",
        "pytest-randomly",
        "pytest-timeout",
        "pytest-xdist",
    ),
)
JOBS: Final = ("frames", "reconcile", "orphans", "compact", "refusals")
"""Groups of tests that every release has; the marks of the tests name them."""
SOURCE: Final = ("read", "where", "streams", "limits", "write", "write streams", "connect")
"""The source, and Connect, whose server is in the package from 4.0 on."""
GROUPS: Final = JOBS + SOURCE
JOB_MODULES: Final = (
    "test_frames.py",
    "test_reconcile_job.py",
    "test_orphan_requests.py",
    "test_compact_job.py",
    "test_versions.py",
)
SOURCE_MODULES: Final = ("test_versions_source.py", "test_source_spark.py", "test_source_writer.py")
"""Where there are no Python data sources, these cannot even be imported."""
CONNECT_MODULES: Final = ("test_ways_to_run.py",)


class Release(NamedTuple):
    """One to try: the last of its line."""

    version: str
    python: tuple[int, int]
    """3.5 knows no newer one than 3.11."""
    pins: tuple[str, ...]
    """In place of those of constraints.txt: 3.5 takes numpy 1, and pyarrow of today does not."""
    groups: tuple[str, ...]


RELEASES: Final = (
    Release("3.5.9", (3, 11), ("numpy==1.26.4", "pyarrow==21.0.0"), JOBS),
    Release("4.0.5", (3, 11), (), GROUPS),
    Release("4.1.4", (3, 11), (), GROUPS),
    Release("4.3.0", (3, 11), (), GROUPS),
)


class VersionsError(Exception):
    """An environment could not be made."""


class Run(NamedTuple):
    """What became of a release."""

    found: dict[str, Count | None]
    """By group; None for one that the release lacks."""
    faults: list[str]
    seconds: float

    def __str__(self) -> str:
        said = "passed" if not self.faults else f"FAILED: {'; '.join(self.faults)}"
        return f"{said}, {self.seconds:.0f} s"


def limits_of(release: Release) -> list[str]:
    """The constraints of a release's environment."""
    own = {"pyspark", *(pin.partition("==")[0] for pin in release.pins)}
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if line.partition("==")[0].lower() not in own]
    return [*kept, f"pyspark=={release.version}", *release.pins]


def environment(release: Release) -> Path:
    """The interpreter of a release's environment, made if it is not as it should be."""
    folder, limits = FOLDER / release.version, limits_of(release)
    wanted = "\n".join([*limits, *TOOLS, (ROOT / "pyproject.toml").read_text(encoding="utf-8")])
    stamp, mark = folder / ".installed", hashlib.sha256(wanted.encode()).hexdigest()
    inside = folder / "bin" / "python"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == mark:
        return inside
    python = find(release.python)
    if python is None:
        wanted_python = ".".join(map(str, release.python))
        raise VersionsError(f"Spark {release.version} needs Python {wanted_python}: not found")
    print(f"Spark {release.version}: making {folder}", flush=True)
    if not inside.exists():
        _run(python.path, "-m", "venv", str(folder))
    named = folder / "limits.txt"
    named.write_text("".join(f"{line}\n" for line in limits), encoding="utf-8")
    # Most modules are never imported here: those that are compile themselves.
    options = ("--disable-pip-version-check", "--quiet", "--no-compile", "--constraint", str(named))
    _run(str(inside), "-m", "pip", "install", *options, "--editable", f"{ROOT}[all]", *TOOLS)
    stamp.write_text(mark, encoding="utf-8")
    return inside


def tests(release: Release, python: Path, outcomes: Path) -> int:
    """Run the tests; pytest's exit code. What became of each is noted in `outcomes`.

    Two runs, so that what ends one of them, a session or a server, leaves the other's groups alone.
    """
    has_source = bool(set(release.groups) & set(SOURCE))
    runs = [JOB_MODULES + SOURCE_MODULES, CONNECT_MODULES] if has_source else [JOB_MODULES]
    # Other releases warn of what is theirs, sockets and modules of old: no warning is an error.
    quiet = ("-q", "-W", "default", "--disable-warnings")
    noted = ("-p", "tests.tier2.spark.version_groups", "--outcomes", str(outcomes))
    options = (*quiet, "-p", "no:xdist", "-p", "no:cacheprovider", "-m", MARK, *noted)
    clean = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith(("SPARK_", "PYSPARK_", "PYTHON"))
    }
    codes = []
    for names in runs:
        command = [
            str(python),
            "-m",
            "pytest",
            *options,
            *(str(Path(__file__).parent / name) for name in names),
        ]
        codes.append(
            subprocess.run(command, cwd=ROOT, env=clean, timeout=TIMEOUT_S, check=False).returncode
        )
    return next((code for code in codes if code), 0)


def tried(release: Release) -> Run:
    """Make the environment and run the tests."""
    begun = time.monotonic()
    outcomes = FOLDER / f"{release.version}.outcomes"
    outcomes.unlink(missing_ok=True)
    wrong: list[str] = []
    found: dict[str, Count | None] = {
        group: None for group in GROUPS if group not in release.groups
    }
    try:
        code = tests(release, environment(release), outcomes)
        wrong += [f"pytest ended with {code}"] * (code != 0)
    except (VersionsError, subprocess.TimeoutExpired) as error:
        wrong.append(str(error))
    if outcomes.exists():
        found |= counted(outcomes.read_text(encoding="utf-8"))
    return Run(found, wrong + faults(GROUPS, found), time.monotonic() - begun)


def main(names: list[str]) -> int:
    """The exit code."""
    known = {release.version: release for release in RELEASES}
    unknown = [name for name in names if name not in known]
    if unknown:
        print(
            f"there is no release {unknown[0]} here; there are {', '.join(known)}", file=sys.stderr
        )
        return 2
    runs = {name: tried(known[name]) for name in names or known}
    print()
    print("\n".join(table(GROUPS, {name: run.found for name, run in runs.items()})))
    print()
    for name, run in runs.items():
        print(f"Spark {name}: {run}")
    return int(any(run.faults for run in runs.values()))


def _run(*command: str) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, cwd=ROOT
    )
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines()[-10:]
        raise VersionsError(f"{' '.join(command)} ended with {done.returncode}: " + "\n".join(said))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
