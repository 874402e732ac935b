"""Metrics of several hosts as one text of Prometheus' format, with the host as a label. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

_HEADER: Final = re.compile(r"# (?:HELP|TYPE) (\S+)")
_SAMPLE: Final = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})?( .*)", re.DOTALL)


def merged_metrics(of_hosts: Sequence[tuple[str, bytes]]) -> bytes:
    """The texts of hosts by their addresses: each sample has the label `host`."""
    headers: dict[str, dict[str, None]] = {}
    samples: dict[str, list[str]] = {}
    for host, text in of_hosts:
        family = ""
        for line in text.decode().splitlines():
            if (header := _HEADER.match(line)) is not None:
                family = header[1]
                headers.setdefault(family, {})[line] = None
            elif (sample := _SAMPLE.fullmatch(line)) is not None:
                labels = f'host="{host}"' + (f",{sample[2]}" if sample[2] else "")
                samples.setdefault(family, []).append(f"{sample[1]}{{{labels}}}{sample[3]}")
    lines = [line for family in headers for line in (*headers[family], *samples.get(family, ()))]
    return "".join(f"{line}\n" for line in lines).encode()
