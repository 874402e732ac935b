"""Whether the newest snapshots, which nobody was asked for, are the last word: what is listed beside them may say otherwise.

A store that ran on after its last export has objects that its snapshot does not know, and lacks some that it does. Rules:

- only objects count that are not in snapshot A, for a store that was copied has new times on all of them;
- clocks of stores and owners may differ by CLOCKS_MS: what is newer by less proves nothing, and is no orphan either.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from tier2.catalog.catalog_manifest import Manifest
from tier2.object_names import parse_object_name
from tier2.spark.findings import CLOCKS_MS, Suspects

_WHY: Final = "was not asked, and its snapshot is older than"


def moved_on(surveyed: Iterable[Suspects], manifests: Mapping[int, Manifest], *, shared: bool) -> dict[int, str]:
    """Containers whose snapshots in `manifests` are not the last word, and why. O(suspects).

    `shared`: other stores keep objects here, whose epochs say nothing; their times are taken for ours, in doubt.
    """
    reasons: dict[int, str] = {}
    for before, listed in surveyed:
        known = set(before["name"].to_pylist())
        for name, modified_ms in zip(listed["key"].to_pylist(), listed["modified_ms"].to_pylist(), strict=True):
            parts = parse_object_name(str(name))
            if parts is None or name in known or parts.container_id in reasons or parts.container_id not in manifests:
                continue
            manifest = manifests[parts.container_id]
            late = modified_ms is not None and modified_ms > manifest.time_ms + CLOCKS_MS
            if late or (parts.epoch > manifest.epoch and not shared):
                reasons[parts.container_id] = f"its owner {_WHY} {name}: export the catalog"
    return reasons
