"""Ids of the attributes that Pravega's segment store keeps of each segment.

Source: Pravega's `Attributes`, release 0.13.0. The most significant half is -2^63.
"""

from __future__ import annotations

import uuid
from typing import Final


def _system(number: int) -> uuid.UUID:
    return uuid.UUID(int=1 << 127 | number)


CREATION_TIME: Final = _system(0)
"""Milliseconds since 1970 UTC."""
EVENT_COUNT: Final = _system(1)
SCALE_POLICY_TYPE: Final = _system(2)
"""0 none, 1 by KB/s, 2 by events/s."""
SCALE_POLICY_RATE: Final = _system(3)
ROLLOVER_SIZE: Final = _system(4)
"""Bytes; 0: as the server likes. This engine keeps it and does not use it."""
