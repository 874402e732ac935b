"""Run the tests marked `spark_versions` in each release of Spark, in an environment of its own.

    python -m tests.tier2.spark.check_versions [release ...]

The environments are made below var/spark-versions at the first call (1.1 GB each) and kept; all but
Spark, and what it holds back, has the pins of constraints.txt. Ends with 1 if a test of any release
fails.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, NamedTuple

from tests.wheel.check_wheel import find

ROOT: Final = Path(__file__).resolve().parents[3]
FOLDER: Final = ROOT / "var" / "spark-versions"
PATIENCE_S: Final = 3600
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
JOBS: Final = ("test_frames.py", "test_reconcile_job.py", "test_compact_job.py", "test_versions.py")
SOURCE: Final = (
    *(
        "test_versions_source.py",
        "test_source_spark.py",
        "test_source_writer.py",
        "test_ways_to_run.py",
    ),
)
"""The source, and Connect, whose server is in the package from 4.0 on."""


class Release(NamedTuple):
    """One to try: the last of its line."""

    version: str
    python: tuple[int, int]
    """3.5 knows no newer one than 3.11."""
    pins: tuple[str, ...]
    """In place of those of constraints.txt: 3.5 takes numpy 1 alone, and pyarrow of today does
    not.
    """
    modules: tuple[str, ...]


RELEASES: Final = (
    Release("3.5.9", (3, 11), ("numpy==1.26.4", "pyarrow==21.0.0"), JOBS),
    Release("4.0.5", (3, 11), (), JOBS + SOURCE),
    Release("4.1.4", (3, 11), (), JOBS + SOURCE),
    Release("4.3.0", (3, 11), (), JOBS + SOURCE),
)


class VersionsError(Exception):
    """An environment could not be made."""


def limits_of(release: Release) -> list[str]:
    """The constraints of a release's environment."""
    own = {"pyspark", *(pin.partition("==")[0] for pin in release.pins)}
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if line.partition("==")[0].lower() not in own]
    return [*kept, f"pyspark=={release.version}", *release.pins]


def environment(release: Release) -> Path:
    """The interpreter of a release's environment, made if it is not there or not as it should
    be.
    """
    folder, limits = FOLDER / release.version, limits_of(release)
    wanted = "\n".join([*limits, *TOOLS, (ROOT / "pyproject.toml").read_text(encoding="utf-8")])
    stamp, mark = folder / ".installed", hashlib.sha256(wanted.encode()).hexdigest()
    inside = folder / "bin" / "python"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == mark:
        return inside
    python = find(release.python)
    if python is None:
        raise VersionsError(
            f"Spark {release.version} needs Python "
            f"{release.python[0]}.{release.python[1]}: not found"
        )
    print(f"Spark {release.version}: making {folder}", flush=True)
    if not inside.exists():
        _run(python.path, "-m", "venv", str(folder))
    named = folder / "limits.txt"
    named.write_text("".join(f"{line}\n" for line in limits), encoding="utf-8")
    pip = (
        str(inside),
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        "--quiet",
        "--constraint",
        str(named),
    )
    _run(*pip, "--editable", f"{ROOT}[all]", *TOOLS)
    stamp.write_text(mark, encoding="utf-8")
    return inside


def tests(release: Release, python: Path) -> int:
    """Run the tests; pytest's exit code."""
    modules = [str(Path(__file__).parent / name) for name in release.modules]
    # Other releases warn of what is theirs, sockets and modules of old: here no warning is an
    # error.
    options = (
        "-q",
        "-p",
        "no:xdist",
        "-p",
        "no:cacheprovider",
        "-W",
        "default",
        "-m",
        "spark_versions",
    )
    clean = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith(("SPARK_", "PYSPARK_", "PYTHON"))
    }
    command = [str(python), "-m", "pytest", *options, *modules]
    return subprocess.run(command, cwd=ROOT, env=clean, timeout=PATIENCE_S, check=False).returncode


def main(names: list[str]) -> int:
    """The exit code."""
    known = {release.version: release for release in RELEASES}
    unknown = [name for name in names if name not in known]
    if unknown:
        print(
            f"there is no release {unknown[0]} here; there are {', '.join(known)}", file=sys.stderr
        )
        return 2
    results: dict[str, str] = {}
    for name in names or known:
        begun = time.monotonic()
        try:
            code = tests(known[name], environment(known[name]))
            results[name] = "passed" if not code else f"FAILED: pytest ended with {code}"
        except (VersionsError, subprocess.TimeoutExpired) as error:
            results[name] = f"FAILED: {error}"
        results[name] += f", {time.monotonic() - begun:.0f} s"
    for name, result in results.items():
        print(f"Spark {name}: {result}")
    return int(any("FAILED" in result for result in results.values()))


def _run(*command: str) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, cwd=ROOT
    )
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines()[-10:]
        raise VersionsError(f"{' '.join(command)} ended with {done.returncode}: " + "\n".join(said))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
