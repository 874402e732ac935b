"""The table of our own commands: type ids, and fields in the order of the wire.

Pravega's type ids are below 256 in either direction from 0. Ours begin at 10,000.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from segmentstore.contracts.store_hosts import StoreHost
from segmentstore.wire.fields import BOOL, DATA, I8, I32, I64, REST, TEXT, UUID, ListOf
from segmentstore.wire.layouts import Layout
from segmentstore.wire.segment_commands import ConditionalAttributeUpdate
from segmentstore.wire.store_commands import (
    AppendBytes,
    AppendEvents,
    AttributeEntry,
    AttributesGiven,
    BeginListing,
    BytesGiven,
    CancelRead,
    ChangeSegment,
    CloseListing,
    CloseWriter,
    ConnectionClosing,
    ContinueListing,
    DescribeHosts,
    DescribeSegment,
    DescribeStore,
    EventToAppend,
    HostsDescribed,
    ListAttributes,
    ListSegments,
    MakeSegment,
    ManageStore,
    MergeSegment,
    MergeSegmentList,
    NumbersGiven,
    OpenWriter,
    ReadAttributes,
    ReadBytes,
    RequestRefused,
    RowsGiven,
    SegmentEntry,
    SegmentsGiven,
    StoreDescribed,
    UpdateAttributes,
)

_UPDATES: Final = ListOf(Layout(ConditionalAttributeUpdate, UUID, I8, I64, I64))
_SEGMENT: Final = Layout(SegmentEntry, TEXT, I64, I64, I64, I64, I64, I64, I32, BOOL, BOOL)
_HOST: Final = Layout(StoreHost, TEXT, I32, ListOf(I32))

STORE_REQUESTS: Final[Mapping[int, Layout]] = {
    10001: Layout(DescribeStore, I64),
    10002: Layout(AppendBytes, I64, I64, TEXT, _UPDATES, REST),
    10003: Layout(OpenWriter, I64, TEXT, UUID),
    10004: Layout(AppendEvents, I64, I64, ListOf(Layout(EventToAppend, I64, DATA))),
    10005: Layout(CloseWriter, I64),
    10006: Layout(ReadBytes, I64, I64, I64, I64, I64, TEXT),
    10007: Layout(CancelRead, I64),
    10008: Layout(DescribeSegment, I64, TEXT),
    10009: Layout(ListSegments, I64, TEXT, TEXT),
    10010: Layout(MakeSegment, I64, TEXT, _UPDATES),
    10011: Layout(ChangeSegment, I64, I8, I64, TEXT),
    10012: Layout(MergeSegment, I64, TEXT, TEXT, _UPDATES),
    10013: Layout(MergeSegmentList, I64, TEXT, ListOf(TEXT)),
    10014: Layout(UpdateAttributes, I64, TEXT, _UPDATES),
    10015: Layout(ReadAttributes, I64, TEXT, ListOf(UUID)),
    10016: Layout(ListAttributes, I64, I64, UUID, UUID, TEXT),
    10017: Layout(ManageStore, I64, TEXT),
    10018: Layout(BeginListing, I64, TEXT, TEXT),
    10019: Layout(ContinueListing, I64, I64),
    10020: Layout(CloseListing, I64),
    10021: Layout(DescribeHosts, I64),
}
"""What a server accepts of a client that announced them."""

STORE_REPLIES: Final[Mapping[int, Layout]] = {
    10101: Layout(StoreDescribed, I64, TEXT, I64, I32, ListOf(I32)),
    10102: Layout(NumbersGiven, I64, ListOf(I64)),
    10103: Layout(BytesGiven, I64, REST),
    10104: Layout(SegmentsGiven, I64, BOOL, ListOf(_SEGMENT)),
    10105: Layout(AttributesGiven, I64, BOOL, ListOf(Layout(AttributeEntry, UUID, I64))),
    10106: Layout(RequestRefused, I64, TEXT, REST),
    10107: Layout(RowsGiven, I64, BOOL, REST),
    10108: Layout(HostsDescribed, I64, TEXT, I64, I32, I64, ListOf(_HOST)),
    10109: Layout(ConnectionClosing),
}
"""What a client accepts of a server that announced them."""

STORE_COMMANDS: Final[Mapping[int, Layout]] = {**STORE_REQUESTS, **STORE_REPLIES}
"""All of ours."""
