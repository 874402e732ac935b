"""The operating system's disk: what it writes in pieces arrives whole."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from segmentstore.contracts.disk import OsDisk


@pytest.mark.parametrize("most", [1, 7, 4096])
def test_short_writes_are_continued_to_the_last_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    rng = random.Random(most)
    whole = os.pwritev

    def short(descriptor: int, buffers: list[bytes | memoryview], offset: int) -> int:
        data = b"".join(buffers)[: rng.randint(1, most)]
        return whole(descriptor, [data], offset)

    monkeypatch.setattr(os, "pwritev", short)
    parts = [rng.randbytes(rng.choice([0, 1, 3, 100, 5000])) for _ in range(40)]
    file = OsDisk().open(str(tmp_path / "file"), write=True, create=True)
    file.pwrite(parts, 10)
    file.close()
    assert (tmp_path / "file").read_bytes() == bytes(10) + b"".join(parts)
