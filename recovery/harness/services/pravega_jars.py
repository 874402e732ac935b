"""Jars of Pravega's, by Maven into `var/services`, once; and what is made of them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from durablelog.bookkeeper.installation import maven
from durablelog.bookkeeper.installation.jars import alone, digest
from durablelog.bookkeeper.installation.programs import run
from recovery.harness.services.installing import services_folder

FETCH_S: Final = 600.0


def pravega_jars(name: str, pom: Path) -> Path:
    """The folder of the jars that a POM depends on, fetched if they are not there.

    Raises GatewayMissingError, which says what to install.
    """

    def fetch(folder: Path) -> None:
        command = [maven(), "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
        run([*command, f"-DoutputDirectory={folder}"], f"fetching {name}", seconds=FETCH_S)

    return kept_folder(f"{name}-{digest(pom.read_bytes())}", fetch)


def kept_folder(name: str, make: Callable[[Path], None]) -> Path:
    """A folder of that name, which gets it when it is whole. One process makes it at a time."""
    target = services_folder() / name
    if not target.is_dir():
        with alone(services_folder(), "pravega.lock") as folder:
            if not target.is_dir():
                made = Path(tempfile.mkdtemp(dir=folder))
                try:
                    make(made)
                    made.rename(target)
                finally:
                    shutil.rmtree(made, ignore_errors=True)
    return target
