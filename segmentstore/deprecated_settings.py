"""Settings that had other names: the old spellings are still accepted, with a warning. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

from segmentstore.contracts.errors import ConfigError

V = TypeVar("V")

CURRENT_NAMES: Final[Mapping[str, str]] = {
    "catalog_export_s": "catalog_export_interval_s",
    "local_face": "local_server",
    "mailbox_poll_s": "mailbox_poll_interval_s",
    "orphan_sweep_spacing_s": "orphan_sweep_interval_s",
}
"""The name of today by the deprecated one."""


def with_current_names(settings: Mapping[str, V]) -> dict[str, V]:
    """The settings of one source by their names of today.

    Raises ConfigError if a setting stands there under both names.
    """
    for old, current in CURRENT_NAMES.items():
        if old in settings and current in settings:
            raise ConfigError(old, f"it is the deprecated name of {current}, which is set too")
    return {CURRENT_NAMES.get(name, name): value for name, value in settings.items()}


def deprecation_notes(names: Iterable[str], prefix: str = "") -> list[str]:
    """A sentence for each deprecated name, as it is spelled: a variable has the prefix."""
    current = {_spelled(old, prefix): _spelled(new, prefix) for old, new in CURRENT_NAMES.items()}
    return [
        f"setting {name} is deprecated; its name is {current[name]}"
        for name in names
        if name in current
    ]


def _spelled(name: str, prefix: str) -> str:
    return prefix + name.upper() if prefix else name
