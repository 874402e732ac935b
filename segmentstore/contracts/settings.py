"""Fields of a configuration that an operator may set: their defaults, and the bounds they keep.

Each part declares its settings beside the code that reads them; `segmentstore.config.StoreConfig`
nests the parts, and finds their settings by this mark.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import Field, field
from typing import Any, Final, NamedTuple, TypeVar

from segmentstore.contracts.errors import ConfigError

T = TypeVar("T")

_MARK: Final = "setting"


class _Bounds(NamedTuple):
    low: float
    high: float


def setting(default: T, bounds: tuple[float, float] | None = None) -> T:
    """A setting of a dataclass, with the bounds of a number, both included."""
    return field(default=default, metadata={_MARK: bounds and _Bounds(*bounds)})


def whole(default: int, low: int = 1, high: int = 1 << 50) -> int:
    """A number of bytes, or of other things."""
    return setting(default, (low, high))


def seconds(default: float, low: float = 0.0, high: float = 10.0**9) -> float:
    """A time."""
    return setting(default, (low, high))


def settings_of(config: type) -> Mapping[str, Field[Any]]:
    """The settings of a dataclass by name; its other fields are the program's own."""
    return {each.name: each for each in dataclasses.fields(config) if _MARK in each.metadata}


def check_bounds(declared: Field[Any], value: Any) -> None:
    """Raise ConfigError if a value is outside the bounds of its setting."""
    bounds = declared.metadata[_MARK]
    if bounds is not None and not bounds.low <= value <= bounds.high:
        raise ConfigError(declared.name, f"{value} is outside {bounds.low} to {bounds.high}")


def check_at_most(config: object, small: str, large: str) -> None:
    """Raise ConfigError if the setting `small` is more than the setting `large`."""
    value, most = getattr(config, small), getattr(config, large)
    if value > most:
        raise ConfigError(small, f"{value} is more than {large}, {most}")
