"""Copies of a catalog whose owner runs on."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from durablelog.catalog.metadata_catalog import MetadataCatalog
from durablelog.catalog.rocksdb_key_store import RocksDbKeyStore
from recovery.scratch_catalog import ScratchCatalog
from segmentstore.contracts.runtime import Runtime
from tests.contracts.key_store_contract import IDENTITY, batch, numbered
from tests.store.harness import WorldDisk


def test_a_checkpoint_that_is_removed_while_it_is_copied_is_not_there(tmp_path: Path) -> None:
    async def main() -> None:
        source = str(tmp_path / "catalog")
        made = MetadataCatalog(source, IDENTITY, Runtime(), RocksDbKeyStore)
        await made.begin_empty()
        await made.write([batch(numbered(range(40), b"x"))], 7)
        await made.close()
        disk = WorldDisk()
        scratch = ScratchCatalog(source, IDENTITY, Runtime(disk=disk), RocksDbKeyStore)

        def remove_once_copied(call: str, path: str) -> None:
            if call == "open" and path.startswith(scratch.checkpoint_directory(7)):
                disk.heal()
                for name in os.listdir(made.checkpoint_directory(7)):
                    os.unlink(os.path.join(made.checkpoint_directory(7), name))

        disk.trap = remove_once_copied
        assert not await scratch.has_checkpoint(7)
        assert scratch.damage is None
        await scratch.close()

    asyncio.run(main())
