"""What tests of long segments have in common: little memory for metadata, and many writers."""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

SMALL: Final[dict[str, Any]] = {
    "containers": 1,
    "inline_checkpoint_bytes_max": 0,
    "active_metadata_bytes_max": 2_000,
    "consolidation": False,
}
WRITERS: Final = [UUID(int=7 * number + 1) for number in range(40)]
NAME: Final = "long"
