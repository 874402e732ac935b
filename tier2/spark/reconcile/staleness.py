"""Whether the newest snapshots, which no owner was asked for, are final: what is listed beside them
may show otherwise.

A store that ran on after its last export has objects that its snapshot does not know, and lacks
some that it does. What the snapshot names all the same was never changed, so damage to it stays
certain; only what is missing or orphaned cannot be known. Rules:

- only objects count that are not in snapshot A: a store that was copied has new times on all of
  them;
- an object of another store, by the tag in its name, shows nothing of this one;
- a snapshot that was exported while no process had the store open (`Manifest.stopped`) is final for
  all owners until then. Only what a later owner, or a job, has put since shows that it is old. A
  name of a newer epoch that was there before, or has a time that is still to come, is a stray;
- of any other snapshot a newer epoch shows it, and so does a newer time. Clocks of stores and
  owners may differ by CLOCKS_MS: what is newer by less proves nothing, and is no orphan either.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tier2.catalog.catalog_manifest import Manifest
from tier2.catalog.catalog_snapshots import Unreadable
from tier2.object_names import ObjectName, parse_manifest_name, parse_object_name
from tier2.spark.reconcile.findings import CLOCKS_MS, StoreFacts, Suspects


def moved_on(
    surveyed: Iterable[Suspects], manifests: Mapping[int, Manifest], place: StoreFacts
) -> dict[int, str]:
    """Containers whose snapshots in `manifests` are not final: which object shows it, and
    what to do.

    Of `place` its tags and its time count. O(suspects).
    """
    reasons: dict[int, str] = {}
    for before, listed in surveyed:
        known = set(before["name"].to_pylist())
        for name, modified_ms in zip(
            listed["key"].to_pylist(), listed["modified_ms"].to_pylist(), strict=True
        ):
            parts = parse_object_name(str(name))
            if parts is None or name in known or parts.container_id in reasons:
                continue
            manifest = manifests.get(parts.container_id)
            if manifest is not None and _shows(parts, modified_ms, manifest, place):
                reasons[parts.container_id] = outdated_by(str(name), manifest)
    return reasons


def outdated_by(name: str, manifest: Manifest) -> str:
    """Why a snapshot is not final, and whose move is next."""
    if manifest.stopped:
        return (
            f"the store was opened after its export, as {name} shows: export the catalog "
            "again, or leave out --stopped"
        )
    return (
        f"its owner was not asked, and {name} is newer than its snapshot of epoch "
        f"{manifest.epoch}: export the catalog"
        " of the stopped store (segmentstore catalog export), or leave out --stopped "
        "beside a running one"
    )


def behind_unreadable(
    unreadable: Mapping[str, Unreadable], manifests: Mapping[int, Manifest]
) -> dict[int, str]:
    """Containers of whose snapshots the newest cannot be read: an older one is not final.

    But one that was exported since, while no process had the store open: what cannot be read is a
    stray then.
    """
    reasons: dict[int, str] = {}
    for name, found in sorted(unreadable.items()):
        parts = parse_manifest_name(name)
        taken = None if parts is None else manifests.get(parts.container_id)
        if parts is not None and (
            taken is None or not taken.stopped or found.modified_ms > taken.time_ms
        ):
            why = "cannot be read: export the catalog, or leave out --stopped"
            reasons[parts.container_id] = f"the newer snapshot {name} {why}"
    return reasons


def _shows(
    parts: ObjectName, modified_ms: int | None, manifest: Manifest, place: StoreFacts
) -> bool:
    if parts.unique_id[: len(place.tag)] in place.others:
        return False
    is_ours = parts.unique_id.startswith(place.tag)
    is_newer = parts.epoch > manifest.epoch
    if not manifest.stopped:
        late = modified_ms is not None and modified_ms > manifest.time_ms + CLOCKS_MS
        return late or (is_newer and is_ours)
    if not is_ours or (modified_ms is not None and modified_ms > place.listed_at_ms + CLOCKS_MS):
        return False
    if is_newer:
        return modified_ms is None or modified_ms > manifest.time_ms
    # An owner of a later epoch may have taken what a job made from this very snapshot.
    return (
        parts.kind == "compaction"
        and modified_ms is not None
        and modified_ms > manifest.time_ms + CLOCKS_MS
    )
