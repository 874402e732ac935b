"""The extras of the package: which modules each brings, and the error for one that is not
installed.

Adapters load their libraries when a store asks for them. They ask here first, before anything is
made.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Final

from segmentstore.contracts.errors import MissingExtraError

MODULES: Final[Mapping[str, Sequence[str]]] = {
    "arrow": ("pyarrow", "numpy"),
    "bookkeeper": ("kazoo", "py4j"),
    "cli": ("typer", "rich"),
    "fast": ("caio", "uvloop"),
    "harness": ("greenlet", "pyarrow", "numpy", "typer", "rich"),
    "metrics": ("prometheus_client",),
    "s3": ("botocore",),
    "server": ("grpc", "google.protobuf", "jwt"),
    "sftp": ("fsspec", "paramiko"),
    "spark": ("pyspark", "pyarrow", "numpy", "obstore", "arro3", "botocore", "fsspec"),
}
"""By the names they are imported by. pyproject.toml names their packages."""


def missing_modules(extra: str) -> list[str]:
    """What of an extra is not installed. Loads none of it but the parents of dotted names."""
    return [name for name in MODULES[extra] if not _is_there(name)]


def _is_there(name: str) -> bool:
    parent = name.rpartition(".")[0]
    # find_spec raises when there is no parent.
    return (not parent or _is_there(parent)) and importlib.util.find_spec(name) is not None


def require_extra(extra: str, needed_for: str) -> None:
    """Raise MissingExtraError unless an extra is installed. `needed_for` is what was asked for."""
    missing = missing_modules(extra)
    if missing:
        raise MissingExtraError(needed_for, extra, missing)
