"""Names of every class, names that nearly are one, and arbitrary ones."""

from __future__ import annotations

import uuid

from hypothesis import strategies as st

from tier2.archive_places import ArchivedName
from tier2.object_names import (
    CATALOG_TABLES,
    ENGINE_PREFIXES,
    AnyName,
    CheckpointName,
    MailboxName,
    MarkerName,
    MessageKey,
    MetadataFileName,
    MetadataManifestName,
    ObjectName,
    ProbeName,
    SnapshotFileName,
    SnapshotName,
    answer_name,
    checkpoint_name,
    manifest_name,
    marker_name,
    message_name,
    metadata_file_name,
    metadata_manifest_name,
    object_name,
    table_name,
)

_U32, _U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
_ID = st.binary(min_size=16, max_size=16)
_JOB = st.from_regex(r"[0-9a-f]{16}", fullmatch=True)
_MESSAGE = st.from_regex(r"[a-z0-9-]{1,80}", fullmatch=True)
_CHARACTERS = "0af-/.gAxé~ \n"

PARTS: st.SearchStrategy[AnyName] = st.one_of(
    st.builds(ObjectName, _U32, _U64, st.sampled_from(("flush", "consolidation")), _ID, st.none()),
    st.builds(ObjectName, _U32, _U64, st.just("compaction"), _ID, _JOB),
    st.builds(CheckpointName, _U32, _U64, _U64, _ID),
    st.builds(
        SnapshotFileName,
        st.builds(SnapshotName, _U32, _U64, _U64, _ID),
        st.sampled_from(("manifest.json", *(f"{table}.parquet" for table in CATALOG_TABLES))),
    ),
    st.builds(MetadataManifestName, _U32, _U64, _U64, _ID),
    st.builds(MetadataFileName, _U32, _U64, _ID),
    st.builds(MailboxName, st.builds(MessageKey, _U32, _JOB, _MESSAGE), st.booleans()),
    st.builds(MarkerName, st.uuids()),
    st.builds(ProbeName, st.from_regex(r"probe/[0-9a-f]{32}", fullmatch=True)),
    st.builds(
        lambda folder, uid, ledger, end: ArchivedName(f"{folder}{uid}-ledger-{ledger}{end}"),
        st.sampled_from(("", "archive/")),
        st.uuids(),
        st.integers(0, 2**63 - 1),
        st.sampled_from(("", "-index")),
    ),
    st.builds(
        lambda folder, store, container, kind, number: ArchivedName(
            f"{folder}parts/{store}/{container:08x}/{kind}-{number:016x}"
        ),
        st.sampled_from(("", "archive/")),
        st.uuids(),
        _U32,
        st.sampled_from(("list", "node")),
        _U64,
    ),
)
"""What names of ours say."""


def name_of(parts: AnyName) -> str:
    """The name that says this, made by the function of its class."""
    match parts:
        case ObjectName(container_id, epoch, kind, unique_id, job_id):
            return object_name(container_id, epoch, kind, unique_id, job_id=job_id)
        case CheckpointName():
            return checkpoint_name(*parts)
        case SnapshotFileName(snapshot, "manifest.json"):
            return manifest_name(snapshot)
        case SnapshotFileName(snapshot, part):
            return table_name(snapshot, part.removesuffix(".parquet"))
        case MetadataManifestName():
            return metadata_manifest_name(*parts)
        case MetadataFileName():
            return metadata_file_name(*parts)
        case MailboxName(key, is_answer):
            return answer_name(key) if is_answer else message_name(key)
        case MarkerName(store_id):
            return marker_name(str(uuid.UUID(bytes=store_id.bytes)))
        case ProbeName(name) | ArchivedName(name):
            return name
        case _:
            raise AssertionError(parts)


@st.composite
def _nearly(draw: st.DrawFn) -> str:
    """A name of ours with one place changed, left out or put in; or in another folder."""
    name = name_of(draw(PARTS))
    place = draw(st.integers(0, len(name)))
    more = draw(st.sampled_from(("", *_CHARACTERS)))
    top, _, rest = name.partition("/")
    changed = (
        name[:place] + more + name[place + 1 :],
        name[:place] + more + name[place:],
        name.upper(),
        draw(st.sampled_from(ENGINE_PREFIXES)) + rest,
        f"00/{rest}",
        f"{top}/",
    )
    return changed[draw(st.integers(0, len(changed) - 1))]


NAMES: st.SearchStrategy[str] = st.one_of(
    PARTS.map(name_of),
    _nearly(),
    st.text(_CHARACTERS, min_size=1, max_size=60),
    st.builds("{}{}".format, st.sampled_from(ENGINE_PREFIXES), st.text(_CHARACTERS, max_size=60)),
)
"""Any names, most of them of ours or nearly so."""
