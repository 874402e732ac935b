"""Build the wheel and the source distribution, install the wheel, and run a smoke test.

    python tests/wheel/check_wheel.py          beside the dependencies that this Python has
    python tests/wheel/check_wheel.py --all    into empty environments, on every Python there is

With `--all`, one environment has the lower bounds of the metadata. Each Python from 3.11 to 3.14
has one with the newest versions pip chooses beside s3fs and FastAPI. Only ready-made wheels are
installed: nothing is compiled. Ends with 1 if anything fails, or if `--all` finds no Python 3.11.
"""

from __future__ import annotations

import concurrent.futures
import email
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
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
EXTRAS = "bookkeeper,cli,metrics,server,sftp"
"""All but the large ones.

With the lower bounds `s3` and `harness` too, which brings `arrow`; Spark's never.
"""
PACKAGES = {"segmentstore", "durablelog", "readindex", "storagewriter", "tier2", "recovery"}
NOT_FOR_USERS = re.compile(
    r"(^|/)(bench|tests|clusters|examples|mutants|services"
    r"|archive_kills\.py|main_job\w*\.py|spark_demo\.py)(/|$)"
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


def build(folder: Path) -> tuple[Path, Path]:
    """The wheel and the source distribution of this tree."""
    run(sys.executable, "-m", "hatchling", "build", "--directory", str(folder), cwd=ROOT)
    (wheel,) = folder.glob("segmentstore-*.whl")
    (source,) = folder.glob("segmentstore-*.tar.gz")
    return wheel, source


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


def check_source(source: Path, wheel: Path) -> None:
    """Raise CheckError if the source distribution lacks what a wheel is built from."""
    with tarfile.open(source) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    with zipfile.ZipFile(wheel) as archive:
        modules = {name for name in archive.namelist() if ".dist-info/" not in name}
    wanted = {"pyproject.toml", "LICENSE", "README.md", *modules}
    if missing := sorted(wanted - held):
        raise CheckError(f"the source distribution lacks {missing}")


def lowest(requirements: list[str]) -> list[str]:
    """A constraint for each lower bound, but for those of Spark, of peers and of the tests."""
    found = []
    for item in requirements:
        match = re.match(r"([A-Za-z0-9_.-]+)(?:\[[^]]*\])?>=([0-9][^;, ]*)", item)
        if match is not None and not re.search(r"extra == '(?:bench-peers|spark|test)'", item):
            found.append(f"{match[1]}=={match[2]}")
    return found


def check_here(wheel: Path, folder: Path) -> str:
    """Install the wheel without its dependencies, and run it with those of this Python."""
    begun = time.monotonic()
    run(sys.executable, "-m", "venv", "--without-pip", str(folder))
    inside = str(folder / "bin" / "python")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", inside)
    run(*pip, "install", "--quiet", "--no-compile", "--no-deps", "--no-index", str(wheel))
    # Behind its own packages: this tree, which the development environment has, is not on the path.
    paths = {"base": str(folder), "platbase": str(folder)}
    packages = Path(sysconfig.get_path("purelib", "venv", paths))
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    work = folder / "work"
    work.mkdir()
    run(inside, "-I", str(HERE / "smoke_extras.py"), cwd=work)
    return f"the wheel, with the dependencies of {sys.prefix}; {time.monotonic() - begun:.0f} s"


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


def check_environments(wheel: Path, bounds: list[str], folder: Path) -> int:
    """Every Python there is, two at a time; how many checks failed."""
    found = {version: find(version) for version in VERSIONS}
    for (major, minor), python in found.items():
        print(python or f"Python {major}.{minor}: not found, not tried", flush=True)
    first = found[VERSIONS[0]]
    if first is None:
        raise CheckError("at least Python 3.11 must be there")
    plans: list[tuple[Python, list[str]]] = [
        (first, bounds),
        *((python, []) for python in found.values() if python is not None),
    ]
    failed = 0
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
    return failed


def main(*, every_python: bool) -> int:
    """Check the wheel; the exit code."""
    folder = Path(tempfile.mkdtemp(prefix="segmentstore-wheel-"))
    try:
        wheel, source = build(folder)
        bounds = lowest(check_contents(wheel))
        check_source(source, wheel)
        if every_python:
            return 1 if check_environments(wheel, bounds, folder) else 0
        print(check_here(wheel, folder / "here"), flush=True)
    except CheckError as error:
        print(f"wheel: FAILED: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(every_python="--all" in sys.argv[1:]))
