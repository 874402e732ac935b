"""In an environment that has the core alone: a store in a folder works, and what is missing is
named with its extra.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import segmentstore

assert not {"rocksdict", "durablelog", "tier2"} & sys.modules.keys(), "import segmentstore is light"

COMMAND = os.path.join(os.path.dirname(sys.executable), "segmentstore")


async def session() -> None:
    """A store of its own, made, filled, flushed and opened again."""
    for compression in ("none", "zstd"):
        folder = f"store-{compression}"
        async with segmentstore.open(folder, compression=compression) as store:
            await store.create_segment("a")
            offsets = await asyncio.gather(
                *(store.append("a", b"%04d" % number) for number in range(100))
            )
            assert offsets == list(range(0, 400, 4))
            await store.flush()
        async with segmentstore.open(folder) as store:
            assert await store.read("a", 396, 10) == b"0099"
            assert store.stats()["health"] == []
            async with segmentstore.connect(folder) as connected:
                assert await connected.append("a", b"more") == 400
                assert await connected.read("a", 396, 10) == b"0099more"
            refused(store.metrics_text, "metrics")


def refused(call: Callable[[], object], extra: str) -> None:
    """Assert that an extra is named."""
    found = error_of(call)
    assert isinstance(found, segmentstore.MissingExtraError), found
    assert found.extra == extra, found
    assert f"pip install 'segmentstore[{extra}]'" in str(found), found


def error_of(call: Callable[[], object]) -> Exception | None:
    """What a call raises; there is no pytest here."""
    try:
        call()
    except segmentstore.SegmentStoreError as error:
        return error
    return None


def main() -> None:
    """Everything."""
    asyncio.run(session())
    with segmentstore.blocking.open("store-none") as store:
        assert (
            b"".join(store.reader("a"))
            == b"".join(b"%04d" % number for number in range(100)) + b"more"
        )
        store.append("a", bytearray(b"more"))
        refused(store.export_catalog, "arrow")
    for tier2, extra in (("s3://bucket/prefix", "s3"), ("sftp://host/folder", "sftp")):
        refused(partial(segmentstore.blocking.open, "other", tier2=tier2), extra)
        assert not os.path.exists("other"), "a store that cannot be was begun"
    refused(
        lambda: segmentstore.blocking.open("other", tier1="bookkeeper://zk:2181/a"), "bookkeeper"
    )
    refused(lambda: segmentstore.blocking.open("third", metrics_port=9), "metrics")
    refused(lambda: segmentstore.blocking.open("third", wire_port=9, controller_port=10), "server")
    assert "fsspec" in str(
        error_of(lambda: segmentstore.blocking.open("fourth", tier2="gs://bucket/prefix"))
    )
    shown = subprocess.run([COMMAND, "--version"], capture_output=True, text=True, check=False)
    assert shown.returncode == 2, shown
    assert len(shown.stderr.splitlines()) == 1, shown
    assert "pip install 'segmentstore[cli]'" in shown.stderr, shown


main()
