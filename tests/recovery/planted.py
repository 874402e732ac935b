"""Real stores with something wrong planted in them: in the log through a log opened beside the
store, in Tier 2 by hand.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

from durablelog.checkpoint_codec import encode_checkpoint
from durablelog.data_frame_builder import DataFrameBuilder
from durablelog.file.file_log import FileLog
from durablelog.operation_codec import encode_operation, encoded_length
from durablelog.operations import CheckpointOperation, Operation
from recovery.store_check import check_store
from segmentstore.cli.stopped_store import StoppedStore
from segmentstore.contracts.findings import Finding
from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata
from segmentstore.contracts.runtime import Runtime
from segmentstore.store_folder import log_directory
from tests.store.harness import open_lazy, run

FLUSHED = b"0123456789" * 9
UNFLUSHED = b"abcdefghij" * 3


def make_store(location: Path, *, containers: int = 1) -> Path:
    """Three segments whose flushed bytes share objects; `a` has un-flushed bytes as well."""

    async def fill() -> None:
        async with open_lazy(location, containers=containers) as store:
            for name in ("a", "b", "c"):
                await store.create_segment(name)
                await store.append(name, FLUSHED)
            await store.flush()
            await store.append("a", UNFLUSHED)

    run(fill())
    return location


def copy_as_it_is(location: Path, copy: Path) -> Path:
    """What a kill now would leave of an open store: the log before the objects, which are put
    before it names them.
    """
    copy.mkdir()
    shutil.copy2(location / "store.toml", copy)
    for part in ("log", "tier2"):
        if (location / part).exists():
            shutil.copytree(location / part, copy / part, copy_function=_copy_what_is_there)
    return copy


def _copy_what_is_there(path: str, to: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        shutil.copy2(path, to)


def check(location: Path, *, deep: bool = False) -> list[Finding]:
    with StoppedStore(str(location)) as stopped:
        return asyncio.run(
            check_store(
                stopped.logs.stored_logs(),
                stopped.tier2_url,
                stopped.runtime,
                deep=deep,
                catalogs=stopped.catalogs,
            )
        )


def kinds(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(finding.severity.value, finding.kind) for finding in findings]


def metadata_of(location: Path) -> ContainerMetadata:
    with StoppedStore(str(location)) as stopped:
        return run(stopped.metadata(0))


def segment_of(metadata: ContainerMetadata, name: str) -> SegmentMetadata:
    return metadata.segments[metadata.names[name]]


def put_into_log(location: Path, *operations: Operation, cut: bool = False) -> None:
    """Append operations as a new owner of the log would; `cut`: truncate the log so that it begins
    with the first.
    """

    async def put() -> None:
        log = FileLog(
            log_directory(str(location), 0),
            0,
            Runtime(),
            file_bytes=1 << 16,
            payload_bytes_max=1 << 15,
        )
        await log.open()
        try:
            addresses = []
            for operation in operations:
                builder = DataFrameBuilder(log.payload_bytes_max)
                parts = encode_operation(operation)
                builder.add(parts, encoded_length(parts))
                payload = builder.seal()
                assert payload is not None
                addresses.append(await log.append(payload))
            if cut:
                await log.truncate(addresses[0])
        finally:
            await log.close()

    run(put())


def plant_checkpoint(
    location: Path, change: Callable[[ContainerMetadata], None], *, cut: bool = True
) -> None:
    """A checkpoint of what the log adds up to, changed; by default the log begins with it then."""
    metadata = metadata_of(location)
    sequence_number = metadata.sequence_number + 1
    change(metadata)
    for segment in metadata.segments.values():
        segment.encoded = None
    put_into_log(
        location,
        CheckpointOperation(encode_checkpoint(metadata), sequence_number=sequence_number),
        cut=cut,
    )


def object_files(location: Path) -> list[Path]:
    """The files of all objects metadata refers to."""
    return [location / "tier2" / name for name in sorted(metadata_of(location).objects)]


def flip(path: Path, position: int) -> None:
    """Change one byte of a file."""
    with path.open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 0x40]))


def tree(location: Path) -> dict[str, tuple[int, bytes]]:
    """Every file with its time of modification and its bytes, every folder with its time; locks
    name the last checker.
    """
    return {
        str(path.relative_to(location)): (
            path.stat().st_mtime_ns,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in (location, *location.rglob("*"))
        if path.name not in {"lock", "LOCK"}
    }
