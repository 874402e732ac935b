"""The bytes of a host's node."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segmentstore.cluster.host_record import (
    CAUSE_CHARS_MAX,
    ContainerReport,
    HostLoad,
    HostRecord,
    ReportedState,
    decode_host_record,
    encode_host_record,
)
from segmentstore.container.container_status import HostState
from segmentstore.contracts.errors import InvalidArgumentError
from tests.cluster.strategies import HOST_RECORDS
from tests.support.suites import examples

RECORD = HostRecord(
    "host-1",
    "10.0.0.1",
    9090,
    "0.1.0",
    1_760_000_000_000,
    load=HostLoad(1, 2, 3, 4),
    controller_host="10.0.0.1",
    controller_port=9091,
    containers={
        7: ContainerReport(ReportedState.RUNNING, 1_760_000_000_500),
        8: ContainerReport(ReportedState.FAILED, 1_760_000_000_600, "no log"),
    },
)


def fields_of(record: HostRecord) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(encode_host_record(record))
    return fields


@settings(max_examples=examples(500))
@given(HOST_RECORDS)
def test_a_record_is_read_as_it_was_written(record: HostRecord) -> None:
    assert decode_host_record(encode_host_record(record)) == record


@settings(max_examples=examples(500))
@given(
    st.binary()
    | st.recursive(
        st.none() | st.integers() | st.text() | st.floats(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(st.sampled_from(sorted(fields_of(RECORD))) | st.text(), inner)
        ),
        max_leaves=20,
    ).map(lambda value: json.dumps(value).encode())
)
def test_what_is_no_record_is_none(data: bytes) -> None:
    assert decode_host_record(data) is None


@settings(max_examples=examples(500))
@given(
    st.sampled_from(sorted(fields_of(RECORD))),
    st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.integers()),
)
def test_a_field_of_any_value_gives_a_record_or_none(name: str, value: object) -> None:
    data = json.dumps({**fields_of(RECORD), name: value}).encode()
    record = decode_host_record(data)
    assert record is None or decode_host_record(encode_host_record(record)) == record


def test_the_format_page_has_these_bytes() -> None:
    assert encode_host_record(RECORD).decode() == (
        '{"version":1,"host_id":"host-1","host":"10.0.0.1","port":9090,"software":"0.1.0",'
        '"started_ms":1760000000000,"capacity":100,"draining":false,"load":{"bytes_in_per_s":1,'
        '"bytes_out_per_s":2,"unflushed_bytes":3,"active_segments":4},"containers":'
        '{"7":["running",1760000000500],"8":["failed",1760000000600,"no log"]},'
        '"controller":["10.0.0.1",9091]}'
    )


def test_later_software_may_add_fields_states_and_what_it_says_of_a_container() -> None:
    fields = fields_of(RECORD)
    fields["rack"] = "r1"
    fields["load"]["disk"] = 5
    fields["containers"]["7"] += ["", "more"]
    fields["containers"]["8"][0] = "warming"
    record = decode_host_record(json.dumps(fields).encode())
    assert record == dataclasses.replace(
        RECORD,
        containers={
            7: RECORD.containers[7],
            8: ContainerReport(ReportedState.STARTING, 1_760_000_000_600, "no log"),
        },
    )


def test_a_host_without_a_controller_says_nothing_of_one() -> None:
    alone = dataclasses.replace(RECORD, controller_host="", controller_port=0)
    fields = fields_of(RECORD)
    assert fields.pop("controller") == ["10.0.0.1", 9091]
    assert fields_of(alone) == fields
    assert decode_host_record(json.dumps(fields).encode()) == alone


def test_a_record_of_a_later_version_is_not_read() -> None:
    assert decode_host_record(json.dumps({**fields_of(RECORD), "version": 2}).encode()) is None


def test_states_have_the_names_of_the_registry() -> None:
    stopped = {HostState.STOPPED.value}
    assert {each.value for each in ReportedState} == {each.value for each in HostState} - stopped


def test_a_host_whose_ten_thousand_containers_all_failed_fits_a_node() -> None:
    cause = "\0" * 10_000  # six bytes each, in JSON
    failed = ContainerReport(ReportedState.FAILED, 1_760_000_000_000, cause)
    record = dataclasses.replace(RECORD, containers=dict.fromkeys(range(10_000), failed))
    data = encode_host_record(record)
    assert len(data) < 1_000_000
    read = decode_host_record(data)
    assert read is not None
    assert read.containers[0].cause == cause[:CAUSE_CHARS_MAX]
    assert read.containers[9_999] == dataclasses.replace(failed, cause="")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("host_id", ""),
        ("host_id", "a" * 256),
        ("host_id", "a/b"),
        ("host_id", ".."),
        ("host_id", "ä"),
        ("host_id", None),
        ("host", ""),
        ("host", "a\nb"),
        ("port", 0),
        ("port", 65536),
        ("port", True),
        ("controller_host", ""),
        ("controller_port", 0),
        ("controller_port", 65536),
        ("version", "v" * 256),
        ("started_ms", -1),
        ("capacity", 0),
        ("capacity", 1_000_001),
        ("draining", 1),
        ("containers", {-1: RECORD.containers[7]}),
        ("containers", {1: ContainerReport(ReportedState.RUNNING, -1)}),
    ],
)
def test_a_value_out_of_its_range_is_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        dataclasses.replace(RECORD, **{name: value})


def test_a_load_is_no_negative_number() -> None:
    with pytest.raises(InvalidArgumentError, match="unflushed_bytes"):
        HostLoad(unflushed_bytes=-1)
