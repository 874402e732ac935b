"""Which names a host of a cluster may have: a node of ZooKeeper is named by it. Pure."""

from __future__ import annotations

import re
from typing import Final

HOST_ID_FORM: Final = "1 to 200 of A-Z, a-z, 0-9, '.', '_', '-', beginning with a letter or digit"
_HOST_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}", re.ASCII)


def is_host_id(text: object) -> bool:
    """Whether a host may have this id."""
    return isinstance(text, str) and _HOST_ID.fullmatch(text) is not None


def host_id_of(machine: str, port: int) -> str:
    """The id of a host that was given none: the machine's name and its port."""
    kept = re.sub(r"[^A-Za-z0-9._-]", "-", machine).lstrip("._-")[:180]
    return f"{kept or 'host'}-{port}"
