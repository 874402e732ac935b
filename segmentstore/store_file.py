"""`store.toml`: what is fixed when a store is made, and its other settings. Pure.

The file's page: docs/formats/store-toml.md.
"""

from __future__ import annotations

import tomllib
import uuid
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field

from segmentstore.config import FIXED, StoreConfig, typed_setting
from segmentstore.contracts.errors import ConfigError, DeprecatedSettingWarning
from segmentstore.deprecated_settings import deprecation_notes, with_current_names

FILE_NAME = "store.toml"
FILE_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFile:
    """What `store.toml` says."""

    store_id: str
    settings: Mapping[str, object] = field(repr=False)
    """As they stand there: a store of old may have a URL with a password."""


def parse_store_file(text: str) -> StoreFile:
    """Read `store.toml`. Raises ConfigError naming what is wrong.

    Warns of deprecated names (DeprecatedSettingWarning).
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(FILE_NAME, f"not TOML: {error}") from None
    version = document.pop("version", None)
    if version != FILE_VERSION:
        raise ConfigError(
            FILE_NAME, f"version {version!r}; this program knows version {FILE_VERSION}"
        )
    store_id = document.pop("store_id", None)
    try:
        store_id = str(uuid.UUID(store_id))
    except (ValueError, TypeError, AttributeError):
        raise ConfigError(FILE_NAME, f"store_id {store_id!r} is not a UUID") from None
    for name in FIXED:
        if name not in document:
            raise ConfigError(FILE_NAME, f"{name} is missing")
    for note in deprecation_notes(document):
        warnings.warn(f"{FILE_NAME}: {note}", DeprecatedSettingWarning, stacklevel=2)
    settings = with_current_names(document)
    return StoreFile(
        store_id=store_id,
        settings={name: typed_setting(name, value) for name, value in settings.items()},
    )


def render_store_file(store_id: str, config: StoreConfig) -> str:
    """The text of a new store's `store.toml`."""
    lines = [
        (
            "# A segment store. What stands here was fixed when it was made; "
            "other settings may be added below"
        ),
        "# and are then the defaults of whoever opens it (docs/formats/store-toml.md).",
        f"version = {FILE_VERSION}",
        f'store_id = "{store_id}"',
    ]
    for name in FIXED:
        value = getattr(config, name)
        lines.append(f"{name} = {value}" if isinstance(value, int) else f"{name} = {quoted(value)}")
    if config.shared_tier2:
        lines.append("shared_tier2 = true")
    return "\n".join(lines) + "\n"


def quoted(text: str) -> str:
    """A string as it stands in the file."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
