"""What test_read_only_file_system.py runs in a mount namespace of its own:
`read_only_mount.py MOUNT TIER2`.

MOUNT is an empty tmpfs. TIER2 is a folder elsewhere, which stays writable, or "" for the store's
own.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import segmentstore
from segmentstore import AttributeUpdate, UpdateType
from segmentstore.cli.output import to_plain
from segmentstore.contracts.runtime import Runtime
from tests.cli.shell import Result
from tests.cli.shell import segmentstore as command
from tests.store.harness import UNFLUSHED, WorldDisk, attribute, read_all

NAMES = ["flushed", "merged", "pending", "sealed", "truncated", "unflushed"]
BOOKKEEPER = """version = 1
store_id = "00000000-0000-4000-8000-000000000001"
containers = 1
tier1 = "bookkeeper://127.0.0.1:1/store"
tier2 = "file:///objects"
"""


async def build(location: str, tier2: str) -> dict[str, Any]:
    """A store with everything that a segment can be; what its owner shows of it last."""
    disk = WorldDisk()
    runtime = Runtime(disk=disk)
    options: dict[str, Any] = {**UNFLUSHED, "containers": 1, "tier2": tier2}
    async with segmentstore.open(location, runtime=runtime, **options) as store:
        for name in (*NAMES, "linked-source"):
            await store.create_segment(name)
            await store.append(name, name.encode() * 50)
        await store.merge("merged", "linked-source")
        await store.update_attributes(
            "flushed", [AttributeUpdate(attribute(1), UpdateType.REPLACE, 41)]
        )
        await store.truncate("truncated", 100)
        await store.flush()
        await store.checkpoint()
    # Tier 2 takes no more objects: what is not there stays in the log, and what is merged stays
    # unlinked.
    disk.trap = lambda call, path: (
        OSError(errno.EIO, "away", path) if call == "link" and "/tier2/" in path else None
    )
    async with segmentstore.open(location, runtime=runtime, **options) as store:
        for name in NAMES[1:]:
            await store.append(name, f"and {name} in the log".encode())
        await store.create_segment("pending-source")
        await store.append("pending-source", b"merged and not linked")
        await store.merge("pending", "pending-source")
        await store.update_attributes(
            "unflushed", [AttributeUpdate(attribute(2), UpdateType.REPLACE, 42)]
        )
        await store.truncate("truncated", 120)
        await store.seal("sealed")
        infos = {each.name: to_plain(each) async for each in store.list_segments()}
        assert sorted(infos) == NAMES
        assert infos["flushed"]["storage_length"] == infos["flushed"]["length"] == 350
        assert infos["unflushed"]["storage_length"] < infos["unflushed"]["length"]
        metadata = store._parts.containers[0].metadata
        merges = {
            name: len(metadata.segments[metadata.names[name]].merges)
            for name in ("merged", "pending")
        }
        assert merges == {"merged": 0, "pending": 1}
        return {
            name: {
                "info": infos[name],
                "bytes": await read_all(store, name, infos[name]["start_offset"]),
                "attributes": {
                    str(key): value for key, value in (await store.get_attributes(name)).items()
                },
            }
            for name in NAMES
        }


def snapshot(folder: Path) -> dict[str, tuple[int, bytes | None]]:
    """Everything in a folder: when it was changed, and its bytes."""
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else None)
        for path in (folder, *sorted(folder.rglob("*")))
    }


def shown(*arguments: object) -> Result:
    """What a reading command says on the read-only file system."""
    result = command(*arguments)
    assert result.code == 0, (arguments, result)
    assert result.err.count("\n") == 1, result.err
    assert "read-only view as of now" in result.err
    return result


def check_reads(store: str, expected: dict[str, Any]) -> None:
    assert shown("ls", store, "--json").json_lines() == [expected[name]["info"] for name in NAMES]
    for name in NAMES:
        assert shown("cat", store, name).out == expected[name]["bytes"], name
        assert shown("attrs", store, name, "--json").json() == expected[name]["attributes"]
    with pytest.MonkeyPatch.context() as environment:
        # What memory does not hold comes from the log again.
        environment.setenv("SEGMENTSTORE_TAIL_BYTES_MAX", "10")
        environment.setenv("SEGMENTSTORE_CACHE_BYTES_MAX", "1")
        for name in NAMES:
            assert shown("cat", store, name).out == expected[name]["bytes"], name
    assert shown("info", store, "pending", "--json").json() == expected["pending"]["info"]
    assert (
        shown("cat", store, "pending", "--offset", "340", "--length", "30").out
        == expected["pending"]["bytes"][340:370]
    )
    numbers = shown("info", store, "--json").json()
    assert numbers["containers"]["0"]["segments"] == len(NAMES)
    assert not numbers["tier2"]["operations"].keys() - {"get", "head", "list"}
    assert any("mounted read-only" in line for line in numbers["health"]), numbers["health"]
    absent = command("cat", store, "absent")
    assert absent.code == 1
    assert "does not exist" in absent.err


def check_refusals(store: str, mount: str) -> None:
    uuid = "00000000-0000-4000-8000-000000000002=1"
    for arguments in (
        ("append", store, "flushed"),
        ("append", f"{mount}/new", "flushed"),
        ("create", store, "new"),
        ("seal", store, "flushed"),
        ("flush", store),
        ("checkpoint", store),
        ("gc", store),
        ("gc", store, "--dry-run"),
        ("verify", store),
        ("cat", store, "flushed", "--follow"),
        ("attrs", store, "flushed", "--set", uuid),
    ):
        refused = command(*arguments, stdin=b"more\n")
        assert refused.code == 1, (arguments, refused)
        assert "mounted read-only" in refused.err, (arguments, refused)
        assert "mount it writable" in refused.err, (arguments, refused)
    elsewhere = command("ls", f"{mount}/on-bookkeeper")
    # Its view needs no folder that can be written, but the cluster, which is not there.
    assert elsewhere.code == 5, elsewhere
    assert "tier1 is not available" in elsewhere.err


def main(mount: str, tier2: str) -> None:
    store = f"{mount}/store"
    expected = asyncio.run(build(store, tier2))
    os.mkdir(f"{mount}/on-bookkeeper")
    Path(f"{mount}/on-bookkeeper/store.toml").write_text(BOOKKEEPER, encoding="utf-8")
    subprocess.run(["mount", "-o", "remount,ro", mount], check=True)
    objects = Path(tier2.removeprefix("file://")) if tier2 else Path(store, "tier2")
    before = snapshot(Path(store)), snapshot(objects)
    check_reads(store, expected)
    check_refusals(store, mount)
    assert (snapshot(Path(store)), snapshot(objects)) == before
    print(json.dumps(sorted(expected)))


if __name__ == "__main__":
    main(*sys.argv[1:])
