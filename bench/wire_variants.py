"""Pravega's clients on this store in other settings: on the file log, and with TLS.

In the skeleton's column stands the same store on BookKeeper and without TLS, in turns with it.
"""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from pathlib import Path
from typing import Final

from bench.report import CaseResult, Row
from bench.wire_clients import LOADS, ClientLoad, compare, event_rate, sizes_of
from bench.wire_servers import NOTE, OurServer, bookkeeper_url, one_bookie, running
from bench.workspace import BenchError, subfolder

QUESTION: Final = "Pravega's clients: file log, TLS (skeleton: BookKeeper without TLS)"
WITH_TLS: Final = ClientLoad("java", "fast", 100, event_rate("Java, 100 B, unpaced, TLS", 0.6))


def run(directory: Path, *, quick: bool) -> CaseResult:
    """Some 4 minutes quick, 10 else."""
    sizes = sizes_of(quick=quick)
    rows = list[Row]()
    with subfolder(directory, "wire") as folder, one_bookie(folder) as cluster:
        tier1 = bookkeeper_url(cluster, "tls")
        secured = OurServer(folder / "tls", tier1, certificates(folder))
        with running(OurServer(folder / "ours", bookkeeper_url(cluster, "ours"))) as ours:
            with running(secured):
                rows += compare(folder, cluster, secured, ours, [WITH_TLS], sizes)
            with running(OurServer(folder / "file", "file")) as on_file:
                rows += [
                    dataclasses.replace(row, name=f"{row.name}, file log", bar="", met=None)
                    for row in compare(folder, cluster, on_file, ours, LOADS, sizes)
                ]
    return CaseResult(case="wire_variants", question=QUESTION, rows=rows, notes=[NOTE])


def certificates(folder: Path) -> Path:
    """A folder with ca.crt, server.crt and server.key, for `localhost`. Raises BenchError."""
    made = folder / "certificates"
    made.mkdir()
    program = shutil.which("openssl")
    if program is None:
        raise BenchError("openssl is needed for certificates (Debian: apt-get install openssl)")
    usual = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    files = ("-keyout", "{0}.key", "-out", "{0}.crt", "-subj", "/CN={0}")
    signed = ["-CA", "ca.crt", "-CAkey", "ca.key", "-addext", "basicConstraints=critical,CA:FALSE"]
    signed += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    for name, more in (("ca", []), ("server", signed)):
        command = [program, *usual, *(each.format(name) for each in files), *more]
        done = subprocess.run(command, cwd=made, check=False, capture_output=True, text=True)
        if done.returncode:
            raise BenchError(f"no certificate by openssl:\n{done.stderr}")
    return made


if __name__ == "__main__":
    from bench.suite import main

    main("wire_variants")
