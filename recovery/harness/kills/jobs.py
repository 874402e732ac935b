"""Compaction jobs in a process of their own, beside a real store that is killed again and again;
and are killed themselves.

    python -m recovery.harness.kills.jobs TIER2_URL CONTAINERS SEED

Jobs do not know which process owns the store, nor whether there is an owner. When the parent has
ended (the end of stdin) they go too.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from typing import Final

from recovery.harness.workloads.compaction_jobs import CompactionJobs
from segmentstore.contracts.runtime import Runtime
from tier2.locations import open_object_storage
from tier2.mailbox.mailbox import list_messages, read_answer

_MODULE: Final = "recovery.harness.kills.jobs"
_ENDING_S: Final = 20.0
_PACE: Final = 0.05


class JobsProcess:
    """One process of jobs at a time, and how many were killed; its user ends it."""

    def __init__(self, url: str, containers: int, seed: str) -> None:
        self._url = url
        self._arguments = [url, str(containers)]
        self._seed = seed
        self._process: subprocess.Popen[bytes] | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed at the end
        self._started = 0
        self.killed = 0

    def begin(self) -> None:
        """See to it that one runs."""
        if self._process is None:
            command = [
                sys.executable,
                "-m",
                _MODULE,
                *self._arguments,
                f"{self._seed}/{self._started}",
            ]
            self._started += 1
            self._process = subprocess.Popen(  # noqa: S603 - this very program
                command,
                stdin=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,  # a Ctrl-C of the terminal's is not for it
            )

    def kill(self) -> str:
        """SIGKILL; what it said on stderr if it had ended by itself before, which it never
        should.
        """
        process, self._process = self._process, None
        if process is None:
            return ""
        assert process.stdin is not None
        ended = process.poll() is not None
        process.send_signal(signal.SIGKILL)
        process.wait(_ENDING_S)
        process.stdin.close()
        self.killed += not ended
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")[-4000:] if ended else ""

    def verdicts(self) -> Counter[str]:
        """What the owners answered, of the answers that are there."""
        return asyncio.run(_verdicts(self._url, int(self._arguments[1])))

    def end(self) -> str:
        """As `kill`, for good."""
        try:
            return self.kill()
        finally:
            self._errors.close()


async def _verdicts(url: str, containers: int) -> Counter[str]:
    storage = open_object_storage(url, Runtime())
    found: Counter[str] = Counter()
    for container_id in range(containers):
        for entry in await list_messages(storage, container_id):
            if (
                entry.answer is not None
                and (answer := await read_answer(storage, *entry.key)) is not None
            ):
                found[answer.verdict] += 1
    await storage.close()
    return found


async def _run(url: str, containers: int, seed: str) -> None:
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), os._exit, 1)
    runtime = Runtime()
    storage = open_object_storage(url, runtime)
    await CompactionJobs(
        storage, runtime, containers, random.Random(seed), Counter(), pace=_PACE
    ).run()


if __name__ == "__main__":
    asyncio.run(_run(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
