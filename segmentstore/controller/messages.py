"""The Controller's messages, as classes made at run time from the table below.

Numbers and types of the fields are Pravega's (Controller.proto of release 0.13); what is on the
wire has no names. Enumerations are integers here: their encoding is the same.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE: Final = "segmentstore.controller"

TABLE: Final = """
Nothing:
StreamInfo: 1 string scope, 2 string stream, 3 int32 access
ScopeInfo: 1 string scope
ContinuationToken: 1 string token
ExistsResponse: 1 bool exists
ValidityResponse: 1 bool valid
DelegationToken: 1 string token
StatusResponse: 1 int32 status
NodeUri: 1 string endpoint, 2 int32 port
ServerResponse: 1 repeated NodeUri servers
TxnId: 1 int64 high, 2 int64 low
SegmentId: 1 StreamInfo stream_info, 2 int64 segment_id
SegmentRange: 1 SegmentId segment_id, 2 double low, 3 double high
SegmentRanges: 1 repeated SegmentRange ranges, 2 string token
ScalingPolicyMessage: 1 int32 kind, 2 int32 rate, 3 int32 factor, 4 int32 segments
RetentionPolicyMessage: 1 int32 kind, 2 int64 param, 3 int64 most
Tags: 1 repeated string tags
StreamConfig: 1 StreamInfo stream_info, 2 ScalingPolicyMessage scaling, \
3 RetentionPolicyMessage retention, 4 Tags tags, 5 int64 aggregation_ms, 6 int64 rollover_bytes
StreamCut: 1 StreamInfo stream_info, 2 map cut
StreamCutRange: 1 StreamInfo stream_info, 2 map first, 3 map last
StreamCutRangeResponse: 1 repeated SegmentId segments, 2 string token
SegmentLocation: 1 SegmentId segment_id, 2 int64 offset
SegmentsAtTime: 1 repeated SegmentLocation segments, 2 string token
Successor: 1 SegmentRange range, 2 repeated int64 predecessors
SuccessorResponse: 1 repeated Successor successors, 2 string token
GetSegmentsRequest: 1 StreamInfo stream_info, 2 int64 timestamp
GetEpochSegmentsRequest: 1 StreamInfo stream_info, 2 int32 epoch
CreateTxnRequest: 1 StreamInfo stream_info, 2 int64 lease_ms
CreateTxnResponse: 1 TxnId transaction, 2 repeated SegmentRange segments, 3 string token
TxnRequest: 1 StreamInfo stream_info, 2 TxnId transaction, 3 string writer, 4 int64 timestamp
PingTxnRequest: 1 StreamInfo stream_info, 2 TxnId transaction, 3 int64 lease_ms
ListCompletedTxnRequest: 1 StreamInfo stream_info
CompletedTxn: 1 TxnId transaction, 2 int32 outcome
ListCompletedTxnResponse: 2 repeated CompletedTxn transactions
KeyRangeEntry: 1 double low, 2 double high
ScaleRequest: 1 StreamInfo stream_info, 2 repeated int64 sealed, 3 repeated KeyRangeEntry ranges, \
4 int64 timestamp
ScaleResponse: 1 int32 status, 2 repeated SegmentRange segments, 3 int32 epoch
ScaleStatusRequest: 1 StreamInfo stream_info, 2 int32 epoch
ReaderGroupConfiguration: 1 string scope, 2 string name, 3 int64 refresh_ms, \
4 int64 checkpoint_ms, 5 int32 checkpoints_max, 6 int32 retention, 7 int64 generation, \
8 string uuid, 9 repeated StreamCut starting, 10 repeated StreamCut ending, 11 int64 rollover_bytes
ReaderGroupInfo: 1 string scope, 2 string name, 3 string uuid, 4 int64 generation
CreateReaderGroupResponse: 1 int32 status, 2 ReaderGroupConfiguration configuration
ReaderGroupConfigResponse: 1 ReaderGroupConfiguration configuration, 2 int32 status
UpdateReaderGroupResponse: 1 int32 status, 2 int64 generation
SubscriberStreamCut: 1 string subscriber, 2 int64 generation, 3 string uuid, 4 StreamCut stream_cut
SubscribersResponse: 1 repeated string subscribers, 2 int32 status
KeyValueTableConfig: 1 string scope, 2 string name, 3 int32 partitions, \
4 int32 primary_key_length, 5 int32 secondary_key_length, 6 int64 rollover_bytes
KeyValueTableInfo: 1 string scope, 2 string name
KeyValueTableConfigResponse: 1 KeyValueTableConfig configuration, 2 int32 status
KVTablesInScopeRequest: 1 ScopeInfo scope, 2 ContinuationToken token
KVTablesInScopeResponse: 1 repeated KeyValueTableInfo tables, 2 ContinuationToken token, \
3 int32 status
TimestampFromWriter: 1 string writer, 2 StreamCut position, 3 int64 timestamp
RemoveWriterRequest: 1 string writer, 2 StreamInfo stream_info
ScopesRequest: 1 ContinuationToken token
ScopesResponse: 1 repeated string scopes, 2 ContinuationToken token
StreamsInScopeRequest: 1 ScopeInfo scope, 2 ContinuationToken token
StreamsInScopeWithTagRequest: 1 ScopeInfo scope, 2 string tag, 3 ContinuationToken token
StreamsInScopeResponse: 1 repeated StreamInfo streams, 2 ContinuationToken token, 3 int32 status
"""
"""A message a line: its fields, each with number, type and name. `map` is from int64 to int64."""

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS: Final[dict[str, Any]] = {
    "bool": _Field.TYPE_BOOL,
    "double": _Field.TYPE_DOUBLE,
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "string": _Field.TYPE_STRING,
}


def _message_classes(table: str) -> dict[str, Any]:
    """A class for each message of a table."""
    file = descriptor_pb2.FileDescriptorProto(
        name="segmentstore/controller.proto", package=PACKAGE, syntax="proto3"
    )
    for line in filter(None, table.splitlines()):
        name, _, fields = line.partition(":")
        message = file.message_type.add(name=name)
        for field in filter(None, fields.split(",")):
            _add_field(message, field.split())
    # A pool of its own: another library in the process may have messages of these names.
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        message.name: message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"{PACKAGE}.{message.name}")
        )
        for message in file.message_type
    }


def _add_field(message: Any, words: list[str]) -> None:
    repeated = words[1] == "repeated"
    kind, name = words[-2:]
    field = message.field.add(name=name, number=int(words[0]))
    field.label = _Field.LABEL_REPEATED if repeated or kind == "map" else _Field.LABEL_OPTIONAL
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
        return
    field.type = _Field.TYPE_MESSAGE
    if kind != "map":
        field.type_name = f".{PACKAGE}.{kind}"
        return
    # What protoc makes of map<int64, int64>.
    entry = message.nested_type.add(name=f"{name.title()}Entry")
    entry.options.map_entry = True
    for number, part in enumerate(("key", "value"), 1):
        entry.field.add(
            name=part, number=number, type=_Field.TYPE_INT64, label=_Field.LABEL_OPTIONAL
        )
    field.type_name = f".{PACKAGE}.{message.name}.{entry.name}"


MESSAGES: Final = _message_classes(TABLE)
"""Classes by name."""
