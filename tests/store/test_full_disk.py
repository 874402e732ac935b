"""A real disk that is full: a tmpfs of a few MiB, in a namespace of its own, so that the user need
not be root.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent

CHILD = """
import asyncio, os, sys
import segmentstore

folder, tier2 = sys.argv[1] + "/store", sys.argv[2]
SETTINGS = {"log_file_bytes": 1 << 20, "frame_bytes_max": 60_000, "flush_bytes": 1 << 20,
    "flush_age_s": 600.0,
            "append_bytes_max": 50_000, "tier2": tier2 if tier2 != "same" else ""}

def fill(ball):
    os.lseek(ball, 0, os.SEEK_END)
    try:
        while True:
            os.write(ball, bytes(4096))
    except OSError:
        pass

async def main():
    store = await segmentstore.open(folder, **SETTINGS)
    await store.create_segment("a")
    await store.append("a", b"x" * 1000)
    ball = os.open(sys.argv[1] + "/ball", os.O_CREAT | os.O_RDWR)
    fill(ball)
    appends = [store.append("a", bytes([number]) * 40_000) for number in range(100)]
    if tier2 == "same":
        while not any("disk of the log is full" in line for line in store.stats()["health"]):
            await asyncio.sleep(0.01)
        assert await store.read("a", 0, 10) == b"x" * 10
        os.ftruncate(ball, 0)
    await asyncio.gather(*appends)
    await store.close()
    left = [name for name in os.listdir(folder + "/log/0") if name.endswith(".tmp")]
    assert left == [], left
    fill(ball)
    store = await segmentstore.open(folder, **SETTINGS)
    assert (await store.get_info("a")).length == 1000 + 100 * 40_000
    assert await store.read("a", 1000 + 99 * 40_000, 5) == bytes([99]) * 5
    if tier2 != "same":
        await store.append("a", b"and on")
    await store.close()

asyncio.run(main())
"""


@pytest.mark.parametrize("elsewhere", [True, False], ids=["tier2-elsewhere", "tier2-on-it"])
def test_a_full_disk_holds_appends_back_and_a_store_opens_on_it(
    tmp_path: Path, elsewhere: bool
) -> None:
    mount, script = tmp_path / "disk", tmp_path / "child.py"
    mount.mkdir()
    script.write_text(CHILD)
    tier2 = (tmp_path / "objects").as_uri() if elsewhere else "same"
    inside = f'mount -t tmpfs -o size=10m tmpfs "{mount}" && exec "$@"'
    command = [
        "unshare",
        "-rm",
        "sh",
        "-c",
        inside,
        "sh",
        sys.executable,
        str(script),
        str(mount),
        tier2,
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=240, env=environment, check=False
    )
    words = "this test needs `unshare -rm` and a tmpfs: util-linux, and user namespaces (or root)\n"
    assert done.returncode == 0, words + done.stdout + done.stderr
