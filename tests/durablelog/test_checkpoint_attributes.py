"""Attributes in checkpoints: in order of id, and encoded again only where they changed."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durablelog import checkpoint_codec
from durablelog.checkpoint_codec import decode_checkpoint, encode_checkpoint
from segmentstore.contracts.attribute_pages import AttributePage
from segmentstore.contracts.attributes import ATTRIBUTE_UNSET
from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata
from tests.support.suites import examples


def metadata_with(attributes: dict[bytes, int]) -> ContainerMetadata:
    metadata = ContainerMetadata(0)
    metadata.sequence_number = 9
    segment = SegmentMetadata(1, "s", 0)
    segment.apply_attributes(attributes)
    metadata.segments[1] = segment
    metadata.names["s"] = 1
    return metadata


def records(attributes: list[tuple[bytes, int]]) -> bytes:
    return b"".join(struct.pack(">16sq", *each) for each in attributes)


def ids(count: int) -> list[bytes]:
    return [random.Random(number).randbytes(16) for number in range(count)]


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 600), st.data())
def test_a_checkpoint_has_what_there_is_in_order_of_id(count: int, data: st.DataObject) -> None:
    model = {key: number for number, key in enumerate(ids(count))}
    metadata = metadata_with(model)
    segment = metadata.segments[1]
    for _ in range(4):
        blob = encode_checkpoint(metadata)
        assert records(sorted(model.items())) in blob
        restored = decode_checkpoint(blob)
        assert restored.segments[1].attributes == segment.attributes
        assert encode_checkpoint(restored) == blob
        restored.segments[1].encoded = None
        assert encode_checkpoint(restored) == blob
        some = data.draw(st.lists(st.sampled_from(ids(650)), max_size=20, unique=True))
        change = {key: data.draw(st.sampled_from([1, ATTRIBUTE_UNSET])) for key in some}
        metadata = data.draw(st.sampled_from([metadata, restored]))
        segment = metadata.segments[1]
        segment.apply_attributes(change)
        segment.encoded = None
        model = dict(segment.attributes.items())


def test_only_pages_that_changed_are_encoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[AttributePage] = []
    encode_page = checkpoint_codec._encode_page

    def counting(page: AttributePage) -> bytes:
        if page.encoded is None:
            encoded.append(page)
        return encode_page(page)

    monkeypatch.setattr(checkpoint_codec, "_encode_page", counting)
    metadata = metadata_with(dict.fromkeys(ids(20_000), 5))
    blob = encode_checkpoint(metadata)
    assert len(encoded) > 100
    for made in (metadata, decode_checkpoint(blob)):
        encoded.clear()
        made.segments[1].apply_attributes({ids(1)[0]: 6})
        made.segments[1].encoded = None
        changed = encode_checkpoint(made)
        assert len(encoded) == 1
        assert changed != blob
        assert decode_checkpoint(changed).segments[1].attributes == made.segments[1].attributes
    encoded.clear()
    encode_checkpoint(metadata)
    assert not encoded


def test_attributes_in_another_order_are_read_as_older_versions_wrote_them() -> None:
    model = {key: number for number, key in enumerate(ids(1_000))}
    blob = encode_checkpoint(metadata_with(model))
    in_order, as_made = records(sorted(model.items())), records(list(model.items()))
    assert in_order != as_made
    older = decode_checkpoint(blob.replace(in_order, as_made))
    assert dict(older.segments[1].attributes.items()) == model
    assert encode_checkpoint(older) == blob
