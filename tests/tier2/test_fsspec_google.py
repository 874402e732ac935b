"""Google's object storage through fsspec, as far as it needs no server."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from segmentstore.contracts.runtime import Runtime
from tier2.locations import open_object_storage
from tier2.object_storage import StorageUnavailableError


@pytest.mark.parametrize("scheme", ["gs", "gcs"])
def test_without_credentials_of_google_nothing_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    """The library asked a service that only machines of Google's have, for half a minute."""
    absent = str(tmp_path / "credentials.json")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", absent)
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)

    async def main() -> None:
        storage = open_object_storage(f"{scheme}://bucket/prefix", Runtime())
        try:
            with pytest.raises(StorageUnavailableError, match=re.escape(absent)):
                await storage.head("x")
        finally:
            await storage.close()

    asyncio.run(main())
