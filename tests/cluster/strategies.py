"""Hypothesis: host records and maps of any content."""

from __future__ import annotations

from hypothesis import strategies as st

from segmentstore.cluster.assignment_map import Arrival, AssignmentMap, PassedOver, PlannedMove
from segmentstore.cluster.host_record import (
    CAPACITY_MAX,
    CAUSE_CHARS_MAX,
    NUMBER_MAX,
    ContainerReport,
    HostLoad,
    HostRecord,
    ReportedState,
)

HOST_IDS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,30}", fullmatch=True)
NUMBERS = st.integers(0, NUMBER_MAX)
CONTAINERS = st.integers(0, 65535)
LINES = st.text(st.characters(codec="utf-8", categories=("L", "N", "P")), min_size=1, max_size=40)
CAUSES = st.text(st.characters(codec="utf-8"), max_size=CAUSE_CHARS_MAX)

HOST_RECORDS = st.builds(
    HostRecord,
    host_id=HOST_IDS,
    host=LINES,
    port=st.integers(1, 65535),
    version=LINES,
    started_ms=NUMBERS,
    capacity=st.integers(1, CAPACITY_MAX),
    draining=st.booleans(),
    load=st.builds(HostLoad, NUMBERS, NUMBERS, NUMBERS, NUMBERS),
    containers=st.dictionaries(
        CONTAINERS,
        st.builds(ContainerReport, st.sampled_from(ReportedState), NUMBERS, CAUSES),
        max_size=8,
    ),
)

PAIRS = st.tuples(CONTAINERS, HOST_IDS)
ASSIGNMENT_MAPS = st.builds(
    AssignmentMap,
    epoch=NUMBERS,
    owners=st.dictionaries(CONTAINERS, HOST_IDS, max_size=8),
    pins=st.dictionaries(CONTAINERS, HOST_IDS, max_size=4),
    draining=st.frozensets(HOST_IDS, max_size=4),
    forbidden=st.frozensets(PAIRS, max_size=4),
    passed_over=st.dictionaries(
        PAIRS, st.builds(PassedOver, NUMBERS, NUMBERS, NUMBERS, st.booleans()), max_size=4
    ),
    arrivals=st.dictionaries(
        HOST_IDS, st.builds(Arrival, NUMBERS, NUMBERS, NUMBERS, st.booleans()), max_size=4
    ),
    moves=st.dictionaries(CONTAINERS, st.builds(PlannedMove, HOST_IDS, NUMBERS), max_size=4),
)
