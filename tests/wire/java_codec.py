"""Pravega's own codec, in a Java process: the jars come by Maven into `var/services`, once."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from durablelog.bookkeeper.installation import java
from recovery.harness.services.pravega_jars import pravega_jars
from segmentstore.wire.codec import HEADER

SOURCES: Final = Path(__file__).with_name("java")
POM: Final = SOURCES / "pom.xml"
REFUSED: Final = 0x7FFFFFFF


class JavaCodec:
    """The process."""

    def __init__(self, process: subprocess.Popen[bytes], errors: IO[bytes]) -> None:
        self._process = process
        self._errors = errors

    def round_trip(self, frame: bytes) -> bytes | None:
        """The frame as Pravega reads and writes it; None if it does not read it."""
        assert self._process.stdin is not None
        self._process.stdin.write(frame)
        self._process.stdin.flush()
        header = self._take(HEADER.size)
        type_id, length = HEADER.unpack(header)
        payload = self._take(length)
        return None if type_id == REFUSED else header + payload

    def _take(self, count: int) -> bytes:
        assert self._process.stdout is not None
        taken = self._process.stdout.read(count)
        if len(taken) != count:
            self._errors.seek(0)
            raise RuntimeError(f"Pravega's codec ended: {self._errors.read().decode()}")
        return taken


@contextmanager
def java_codec() -> Iterator[JavaCodec]:
    """Run it; a second or two."""
    command = [
        java(),
        "-cp",
        f"{pravega_jars('pravega-codec', POM)}/*",
        str(SOURCES / "RoundTrip.java"),
    ]
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
        ) as process,
    ):
        try:
            yield JavaCodec(process, errors)
        finally:
            process.kill()
