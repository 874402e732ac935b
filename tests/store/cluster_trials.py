"""What tests of clusters that are set up otherwise have in common: a store that is used, and files
of settings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

import segmentstore
from segmentstore.contracts.errors import ConfigError
from tests.store.harness import LAZY, read_all, run, until

SLOW_TLS_S = 240
"""The gateway's own check of its TLS library takes long on a busy machine."""
ONE = "ensemble=1&session_timeout_s=4"


def use(folder: Path, url: str, *, process_runs: int = 2) -> None:
    """Some lives of a store: what one leaves the next one finds, from the log and from Tier 2."""

    async def main() -> None:
        expected = b""
        for process_run in range(process_runs):
            async with segmentstore.open(str(folder), **{**LAZY, "tier1": url}) as store:
                if not process_run:
                    await store.create_segment("a")
                assert await read_all(store, "a") == expected
                pieces = [b"%d.%d " % (process_run, number) for number in range(20)]
                await asyncio.gather(*[store.append("a", piece) for piece in pieces])
                expected += b"".join(pieces)
                # A Java process may be silent for some seconds on a busy machine.
                await until(lambda: store.stats()["health"] == [])

    run(main(), limit_s=SLOW_TLS_S)


def write_properties(path: Path, values: Mapping[str, str]) -> Path:
    """A file of client settings."""
    path.write_text(
        "".join(f"{name} = {value}\n" for name, value in values.items()), encoding="utf-8"
    )
    return path


def refused(folder: Path, url: str, words: str) -> str:
    """The opening of a store that ends with a setting to mend, said in such words."""
    with pytest.raises(ConfigError, match=words) as caught:
        use(folder, url, process_runs=1)
    assert caught.value.setting == "tier1"
    return str(caught.value)
