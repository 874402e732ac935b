"""Between messages and the values of the Controller."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from segmentstore.controller.group_model import GroupConfiguration
from segmentstore.controller.key_value_tables import KeyValueTableConfiguration
from segmentstore.controller.messages import MESSAGES
from segmentstore.controller.names import ScopedName
from segmentstore.controller.stream_model import (
    ScalingPolicy,
    StreamConfiguration,
    StreamCut,
    StreamRetention,
    StreamSegment,
)

_MASK: Final = (1 << 64) - 1
_SIGN: Final = 1 << 63


def stream_of(info: Any) -> ScopedName:
    """Of a StreamInfo."""
    return ScopedName(info.scope, info.stream)


def stream_info(stream: ScopedName) -> Any:
    """A StreamInfo."""
    return MESSAGES["StreamInfo"](scope=stream.scope, stream=stream.name)


def segment_id(stream: ScopedName, number: int) -> Any:
    """A SegmentId."""
    return MESSAGES["SegmentId"](stream_info=stream_info(stream), segment_id=number)


def segment_range(stream: ScopedName, segment: StreamSegment) -> Any:
    """A SegmentRange."""
    return MESSAGES["SegmentRange"](
        segment_id=segment_id(stream, segment.segment_id), low=segment.low, high=segment.high
    )


def segment_ranges(stream: ScopedName, segments: Iterable[StreamSegment], token: str) -> Any:
    """A SegmentRanges."""
    return MESSAGES["SegmentRanges"](
        ranges=[segment_range(stream, each) for each in segments], token=token
    )


def configuration_of(config: Any) -> StreamConfiguration:
    """Of a StreamConfig, unchecked. Without a scaling policy: one segment."""
    scaling, retention = config.scaling, config.retention
    has_scaling = config.HasField("scaling")
    return StreamConfiguration(
        scaling=ScalingPolicy(scaling.kind, scaling.rate, scaling.factor, scaling.segments)
        if has_scaling
        else ScalingPolicy(),
        # Kind 0 is how clients say that there is none.
        retention=StreamRetention(retention.kind, retention.param, retention.most)
        if retention.kind
        else None,
        tags=tuple(config.tags.tags),
        aggregation_ms=config.aggregation_ms,
        rollover_bytes=config.rollover_bytes,
    )


def stream_config(stream: ScopedName, configuration: StreamConfiguration) -> Any:
    """A StreamConfig."""
    scaling, retention = configuration.scaling, configuration.retention
    return MESSAGES["StreamConfig"](
        stream_info=stream_info(stream),
        scaling=scaling._asdict(),
        retention=retention._asdict() if retention else None,
        tags={"tags": configuration.tags},
        aggregation_ms=configuration.aggregation_ms,
        rollover_bytes=configuration.rollover_bytes,
    )


def cut_of(cut: Mapping[int, int]) -> StreamCut:
    """Of the map of a StreamCut or a StreamCutRange, unchecked."""
    return dict(cut)


def transaction_of(message: Any) -> int:
    """Of a TxnId: its signed halves as 128 bits."""
    return (int(message.high) & _MASK) << 64 | int(message.low) & _MASK


def transaction_id(transaction: int) -> Any:
    """A TxnId."""
    return MESSAGES["TxnId"](high=_signed(transaction >> 64), low=_signed(transaction & _MASK))


def group_configuration_of(message: Any) -> GroupConfiguration:
    """Of a ReaderGroupConfiguration."""
    return GroupConfiguration(
        uuid=message.uuid,
        refresh_ms=message.refresh_ms,
        checkpoint_ms=message.checkpoint_ms,
        checkpoints_max=message.checkpoints_max,
        retention=message.retention,
        generation=message.generation,
        rollover_bytes=message.rollover_bytes,
        starting=tuple((stream_of(each.stream_info), dict(each.cut)) for each in message.starting),
        ending=tuple((stream_of(each.stream_info), dict(each.cut)) for each in message.ending),
    )


def group_message(group: ScopedName, configuration: GroupConfiguration) -> Any:
    """A ReaderGroupConfiguration."""
    return MESSAGES["ReaderGroupConfiguration"](
        scope=group.scope,
        name=group.name,
        refresh_ms=configuration.refresh_ms,
        checkpoint_ms=configuration.checkpoint_ms,
        checkpoints_max=configuration.checkpoints_max,
        retention=configuration.retention,
        generation=configuration.generation,
        uuid=configuration.uuid,
        starting=[_cut(*each) for each in configuration.starting],
        ending=[_cut(*each) for each in configuration.ending],
        rollover_bytes=configuration.rollover_bytes,
    )


def table_configuration_of(message: Any) -> KeyValueTableConfiguration:
    """Of a KeyValueTableConfig, unchecked."""
    return KeyValueTableConfiguration(
        message.partitions,
        message.primary_key_length,
        message.secondary_key_length,
        message.rollover_bytes,
    )


def table_message(table: ScopedName, configuration: KeyValueTableConfiguration) -> Any:
    """A KeyValueTableConfig."""
    return MESSAGES["KeyValueTableConfig"](
        scope=table.scope, name=table.name, **configuration._asdict()
    )


def _cut(stream: ScopedName, cut: StreamCut) -> Any:
    return MESSAGES["StreamCut"](stream_info=stream_info(stream), cut=cut)


def _signed(half: int) -> int:
    return (half ^ _SIGN) - _SIGN
