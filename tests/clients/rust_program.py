"""Our program on Pravega's Rust client: `python -m tests.clients.rust_program`, which is `make
rust-client`.

Builds it with cargo into `var/services`, and runs it on a store of its own. Needs a Rust toolchain,
which no test asks for. The first build takes minutes of a core, of 370 crates.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from recovery.harness.services.installing import services_folder
from tests.clients.served_store import ServedStore

SOURCES: Final = Path(__file__).with_name("rust")
STEPS: Final = (
    "events",
    "large_event",
    "transactions",
    "byte_stream",
    "table",
    "administration",
)
PROGRAM_S: Final = 300.0
"""All steps together take some 20 s."""
_NO_CARGO: Final = (
    "cargo is needed to build the program on Pravega's Rust client and was not found: install Rust "
    "(Debian: apt-get install cargo)"
)


def built_program() -> Path:
    """The program, built if need be. Raises CalledProcessError; exits if there is no cargo."""
    cargo = shutil.which("cargo")
    if cargo is None:
        sys.exit(_NO_CARGO)
    target = services_folder() / "pravega-rust-client"
    command = [cargo, "build", "--locked", "--manifest-path", str(SOURCES / "Cargo.toml")]
    subprocess.run([*command, "--target-dir", str(target)], check=True)
    return target / "debug" / "client-program"


def passed_steps(server: ServedStore, program: Path) -> tuple[str, ...]:
    """What passed, in order, of a run of the program on a new store."""
    ended = subprocess.run(
        [str(program), server.address],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        timeout=PROGRAM_S,
        check=False,
        text=True,
    )
    lines = ended.stdout.splitlines()
    return tuple(line.split()[1] for line in lines if line.startswith("passed "))


def main() -> None:
    program = built_program()
    with (
        tempfile.TemporaryDirectory() as folder,
        ServedStore(Path(folder), containers=4) as server,
    ):
        passed = passed_steps(server, program)
        print(f"passed: {', '.join(passed)}")
        if passed != STEPS:
            sys.exit(f"not passed: {', '.join(STEPS[len(passed) :])}\n{server.condition()}")


if __name__ == "__main__":
    main()
