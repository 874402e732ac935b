"""Build the wheel, install it into empty environments beside what users have, and run a smoke test
in each.

    python tests/wheel/check_wheel.py          lower bounds; the newest of all on the newest Python
    python tests/wheel/check_wheel.py --all    and on every other Python from 3.11 to 3.14 there is

One environment has the lower bounds of the metadata; the others have the newest versions pip
chooses beside s3fs and FastAPI. Only ready-made wheels are installed: nothing is compiled.
Ends with 1 if anything fails, or if there is no Python 3.11.
"""

from __future__ import annotations

import concurrent.futures
import email
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
VERSIONS = ((3, 11), (3, 12), (3, 13), (3, 14))
BESIDE = ("s3fs", "fastapi")
"""What users have beside the store: s3fs pins botocore, with which S3 works without the extra."""
EXTRAS = "bookkeeper,cli,metrics,sftp"
"""All but the large ones.

With the lower bounds `s3` and `harness` too, which brings `arrow`; Spark's never.
"""
PACKAGES = {"segmentstore", "durablelog", "readindex", "storagewriter", "tier2", "recovery"}
NOT_FOR_USERS = re.compile(
    r"(^|/)(bench|tests|examples|mutants|services|main_job\w*\.py|spark_demo\.py)(/|$)"
)
TIMEOUT_S = 600


class CheckError(Exception):
    """The wheel, or an environment, is not as it should be."""


class Python(NamedTuple):
    """An interpreter that runs."""

    version: tuple[int, int]
    path: str

    def __str__(self) -> str:
        return f"Python {self.version[0]}.{self.version[1]} ({self.path})"


def run(*command: str, cwd: Path | None = None) -> str:
    """Run a command; its output. Raises CheckError with what it said."""
    environment = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("PYTHON", "SEGMENTSTORE_"))
    }
    done = subprocess.run(
        command,
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        said = "\n".join(f"    {line}" for line in (done.stdout + done.stderr).splitlines()[-25:])
        raise CheckError(f"{' '.join(command)} ended with {done.returncode}:\n{said}")
    return done.stdout


def candidates(version: tuple[int, int]) -> Iterator[str]:
    """Paths where a Python of a version may be: a name in PATH may be a shim that leads nowhere."""
    name = f"python{version[0]}.{version[1]}"
    for folder in os.get_exec_path():
        yield os.path.join(folder, name)
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    yield from map(str, sorted(versions.glob(f"{version[0]}.{version[1]}*/bin/{name}")))
    if sys.version_info[:2] == version:
        yield sys.executable


def find(version: tuple[int, int]) -> Python | None:
    """The first Python of a version that runs and has `venv`."""
    asked = "import sys, venv; print(*sys.version_info[:2])"
    for path in candidates(version):
        if not os.access(path, os.X_OK):
            continue
        done = subprocess.run(
            [path, "-I", "-c", asked], capture_output=True, text=True, check=False
        )
        if not done.returncode and done.stdout.split() == [str(number) for number in version]:
            return Python(version, path)
    return None


def build(folder: Path) -> Path:
    """The wheel of this tree."""
    pip = (
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "wheel",
        "--quiet",
        "--no-deps",
    )
    run(*pip, "--wheel-dir", str(folder), str(ROOT))
    (wheel,) = folder.glob("segmentstore-*.whl")
    return wheel


def check_contents(wheel: Path) -> list[str]:
    """Raise CheckError if the wheel holds what is not for users, or pins; its requirements."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata_name,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(metadata_name))
    tops = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    if tops != PACKAGES:
        raise CheckError(f"the wheel holds {sorted(tops)}")
    foreign = [name for name in names if NOT_FOR_USERS.search(name)]
    if foreign:
        raise CheckError(f"not for users: {foreign}")
    requirements: list[str] = metadata.get_all("Requires-Dist", [])
    pinned = [item for item in requirements if "==" in item.partition(";")[0]]
    if pinned:
        raise CheckError(f"pinned in the metadata: {pinned}")
    return requirements


def lowest(requirements: list[str]) -> list[str]:
    """A constraint for each lower bound, but for those of Spark and of the tests."""
    found = []
    for item in requirements:
        match = re.match(r"([A-Za-z0-9_.-]+)(?:\[[^]]*\])?>=([0-9][^;, ]*)", item)
        if match is not None and not re.search(r"extra == '(?:spark|test)'", item):
            found.append(f"{match[1]}=={match[2]}")
    return found


def check_environment(python: Python, wheel: Path, folder: Path, constraints: list[str]) -> str:
    """Install and run: first the core alone, then the extras. What was chosen."""
    begun = time.monotonic()
    run(python.path, "-m", "venv", "--without-pip", str(folder))
    inside = str(folder / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", inside]
    limits = folder / "limits.txt"
    limits.write_text("".join(f"{line}\n" for line in constraints), encoding="utf-8")
    install = [
        *pip,
        "install",
        "--quiet",
        "--no-compile",
        "--only-binary",
        ":all:",
        "--constraint",
        str(limits),
    ]
    work = folder / "work"
    work.mkdir()
    run(*install, str(wheel), cwd=work)
    run(inside, "-I", str(HERE / "smoke_core.py"), cwd=work)
    # The lower bounds are older than what s3fs of today takes.
    wanted = (f"{wheel}[{EXTRAS},s3,harness]",) if constraints else (f"{wheel}[{EXTRAS}]", *BESIDE)
    run(*install, *wanted, cwd=work)
    run(*pip, "check")
    run(inside, "-I", str(HERE / "smoke_extras.py"), cwd=work)
    chosen = dict(line.split("==") for line in run(*pip, "freeze").splitlines() if "==" in line)
    shown = ", ".join(
        f"{name} {chosen[name]}"
        for name in ("boto3", "botocore", "rocksdict", "typer", "s3fs")
        if name in chosen
    )
    return (
        f"{python}: {'lower bounds' if constraints else 'newest'}: {shown}; "
        f"{time.monotonic() - begun:.0f} s"
    )


def main(*, every_python: bool) -> int:
    """Check the wheel; the exit code."""
    found = {version: find(version) for version in VERSIONS}
    for (major, minor), python in found.items():
        print(python or f"Python {major}.{minor}: not found, not tried", flush=True)
    first = found[VERSIONS[0]]
    if first is None:
        print("wheel: at least Python 3.11 must be there", file=sys.stderr)
        return 1
    folder = Path(tempfile.mkdtemp(prefix="segmentstore-wheel-"))
    failed = 0
    try:
        wheel = build(folder)
        bounds = lowest(check_contents(wheel))
        plans: list[tuple[Python, list[str]]] = [
            (python, []) for python in found.values() if python is not None
        ]
        if not every_python:
            *untried, newest = plans
            plans = [newest]
            left = ", ".join(str(python) for python, _ in untried) or "none"
            print(f"left to make test-all: {left}", flush=True)
        plans.insert(0, (first, bounds))
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            futures = {
                pool.submit(check_environment, python, wheel, folder / str(number), limits): python
                for number, (python, limits) in enumerate(plans)
            }
            for future in concurrent.futures.as_completed(futures):
                try:
                    print(future.result(), flush=True)
                except CheckError as error:
                    failed += 1
                    print(f"{futures[future]}: FAILED: {error}", file=sys.stderr, flush=True)
    except CheckError as error:
        failed += 1
        print(f"FAILED: {error}", file=sys.stderr)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(every_python="--all" in sys.argv[1:]))
