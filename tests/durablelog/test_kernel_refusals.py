"""A real file log in a process whose kernel refuses to sync: the thread does, nothing is lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from durablelog.file.file_log import FileLog
from recovery.harness.kills.points import require_exact_kills
from segmentstore.contracts.runtime import Runtime
from tests.contracts.durable_data_log_contract import payload, read_payloads
from tests.store.harness import run
from tests.support.suites import slow

APPENDS = 120
PROGRAM = """
import asyncio, sys
from durablelog.file import group_commit
from durablelog.file.file_log import FileLog
from segmentstore.contracts.aio_syncs import AioSyncs
from segmentstore.contracts.disk import OsDisk
from segmentstore.contracts.event_loops import run
from segmentstore.contracts.runtime import Runtime

group_commit.SLOW_WRITE_MS = 3_600_000  # a tracer is slow
group_commit.LOAD_GROUPS = 1

class Disk(OsDisk):
    def kernel_syncs(self, path):
        syncs = AioSyncs()
        syncs.load()
        return syncs

async def main():
    log = FileLog(sys.argv[1], 0, Runtime(disk=Disk()), file_bytes=1 << 20, payload_bytes_max=1000)
    await log.open()
    for start in range(0, int(sys.argv[2]), 2):
        both = [log.append([f"{start + each:06d}".encode().ljust(120, b".")]) for each in (0, 1)]
        await asyncio.gather(*both)
    await log.close()

run(main())
"""


@slow(1)
@pytest.mark.parametrize(
    ("injected", "some"),
    [
        ("io_submit:error=EAGAIN:when=5+7", True),
        ("io_submit:error=EAGAIN:when=3+", False),
        ("io_submit:error=EINVAL:when=1+", False),
        ("io_submit:error=ENOSYS:when=1+", False),
        ("io_setup:error=EAGAIN", False),
        ("io_setup:error=ENOSYS", False),
        ("io_setup:error=EPERM", False),
    ],
)
def test_what_the_kernel_refuses_is_durable_all_the_same(
    injected: str, some: bool, tmp_path: Path
) -> None:
    require_exact_kills()
    trace = tmp_path / "trace"
    calls = "trace=io_setup,io_submit"
    tracer = ["strace", "-f", "-qqq", "-e", "signal=none", "-o", str(trace)]
    program = [sys.executable, "-c", PROGRAM, str(tmp_path / "log"), str(APPENDS)]
    ran = subprocess.run(
        [*tracer, "-e", calls, "-e", f"inject={injected}", *program],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert not ran.stderr
    lines = trace.read_text(encoding="utf-8").splitlines()
    assert any("(INJECTED)" in line for line in lines)
    taken = sum("io_submit(" in line and "(INJECTED)" not in line for line in lines)
    assert (taken > 10) is some

    async def content() -> list[bytes]:
        log = FileLog(
            str(tmp_path / "log"), 0, Runtime(), file_bytes=1 << 20, payload_bytes_max=1000
        )
        await log.open()
        found = await read_payloads(log)
        await log.close()
        return found

    assert run(content()) == [payload(number) for number in range(APPENDS)]
