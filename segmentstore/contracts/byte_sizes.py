"""Numbers of bytes as text: `8MiB` in URLs, `64m` in options of Spark, `11.3 MiB` in reports."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB
TIB: Final = 1024 * GIB

IEC_UNITS: Final[Mapping[str, int]] = {"": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB}
"""Units of the settings and URLs of a store; capitals matter."""
_SPARK_UNITS: Final[Mapping[str, int]] = {
    f"{letter}{ending}": size
    for letter, size in {"k": KIB, "m": MIB, "g": GIB, "t": TIB}.items()
    for ending in ("", "b", "ib")
} | {"": 1, "b": 1}
_SIZE: Final = re.compile(r"([0-9]{1,18})([A-Za-z]{0,3})")
_SPACE_BEFORE_UNIT: Final = re.compile(r"(?<=[0-9])\s+(?=[a-z]+$)")
_SHOWN: Final = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")


def parse_size(text: str, units: Mapping[str, int] = IEC_UNITS) -> int | None:
    """A whole number with one of the units behind it; None for any other text."""
    match = _SIZE.fullmatch(text)
    if match is None or match[2] not in units:
        return None
    return int(match[1]) * units[match[2]]


def parse_spark_size(text: str) -> int | None:
    """The same as Spark writes it, in small letters or capitals: `64m`, `64 MB`, `64MiB`."""
    return parse_size(_SPACE_BEFORE_UNIT.sub("", text.strip().lower()), _SPARK_UNITS)


def format_size(count: int) -> str:
    """A number of bytes in the unit that suits it, e.g. `11.3 MiB`."""
    value = float(count)
    for unit in _SHOWN:
        if value < 1024 or unit == _SHOWN[-1]:
            break
        value /= 1024
    return f"{count} bytes" if unit == "bytes" else f"{value:.1f} {unit}"
