"""ScratchCatalog: a container's catalog for readers that may write nothing where the store is."""

from __future__ import annotations

import tempfile
from typing import Final

from durablelog.catalog.checkpoint_files import CheckpointFiles
from durablelog.catalog.key_store_records import KeyStoreIdentity
from durablelog.catalog.metadata_catalog import MakeKeyStore, MetadataCatalog
from segmentstore.contracts.disk import Disk, make_directories
from segmentstore.contracts.runtime import Runtime

_PIECE_BYTES: Final = 1024 * 1024


class ScratchCatalog(MetadataCatalog):
    """A catalog in a temporary directory of its own, which `close` removes.

    Its checkpoints are copies of whole ones in `source`, the store's own directory, if that has
    them. Nothing is made before one is asked for.
    """

    def __init__(
        self,
        source: str,
        identity: KeyStoreIdentity,
        runtime: Runtime,
        make_store: MakeKeyStore,
    ) -> None:
        number = runtime.random.getrandbits(64)
        directory = f"{tempfile.gettempdir()}/segmentstore-catalog-{number:016x}"
        super().__init__(directory, identity, runtime, make_store)
        self._source = CheckpointFiles(source, identity, runtime.disk)
        self._disk = runtime.disk
        self._used = False

    async def has_checkpoint(self, sequence_number: int) -> bool:
        """Copies it, if the store has it whole."""
        self._used = True
        there = await self._blocking(lambda: self._copy(sequence_number))
        whole = await super().has_checkpoint(sequence_number)
        if not whole and there:
            self.damage = there
        return whole

    def _copy(self, sequence_number: int) -> str | None:
        """As `CheckpointFiles.damage` of the source; copied if that is whole."""
        damage = self._source.damage(sequence_number)
        if damage != "":
            return damage
        source, target = self._source.path(sequence_number), self._files.path(sequence_number)
        make_directories(self._disk, target)
        try:
            files = self._source.files_of(sequence_number)
            for file in files:
                _copy_file(self._disk, f"{source}/{file.name}", f"{target}/{file.name}")
        except FileNotFoundError:
            return None  # A store that runs there has removed it meanwhile.
        self._files.finish(sequence_number, files)
        return damage

    async def close(self) -> None:
        """Remove everything. Idempotent."""
        if self._used:
            self._used = False
            await self.destroy()
        else:
            await super().close()


def _copy_file(disk: Disk, source: str, target: str) -> None:
    read = disk.open(source)
    try:
        write = disk.open(target, write=True, create=True)
        try:
            offset = 0
            while piece := read.pread(offset, _PIECE_BYTES):
                write.pwrite([piece], offset)
                offset += len(piece)
        finally:
            write.close()
    finally:
        read.close()
