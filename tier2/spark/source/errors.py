"""What a read of segments by Spark raises by name, besides what storage and catalog raise
themselves.
"""

from __future__ import annotations


class SourceError(Exception):
    """Base of what the data source raises on purpose."""


class SourceCatalogError(SourceError):
    """The catalog snapshots do not say what is needed: none is there, or none of a container, or no
    such segment.

    The caller's move: export the catalog (`segmentstore catalog export`), or check the name.
    """


class SourceSchemaError(SourceError):
    """A column is asked for that the source does not have, or of another type.

    The caller's move: mend the schema.
    """


class DataLossError(SourceError):
    """Bytes that were asked for, or promised to a stream, are truncated, deleted or merged away.

    The caller's move.

    `failOnDataLoss=false` passes over them, with a line in the log.
    """

    def __init__(self, segment: str, start: int, end: int, why: str) -> None:
        super().__init__(
            f"segment {segment!r}: bytes {start} to {end} are not there any more: {why}"
            " (failOnDataLoss=false passes over them)"
        )
        self.segment = segment
        self.start = start
        self.end = end


class MissingObjectError(SourceError):
    """The newest catalog names an object for these bytes that is not there.

    Either that catalog is older than the object's deletion (it was consolidated or compacted, and
    its deletion lag is over), or the store has lost it. The operator's move: export the catalog and
    read again; if it stays, `segmentstore spark reconcile` names what else is missing.
    """

    def __init__(self, segment: str, offset: int, object_name: str) -> None:
        super().__init__(
            f"segment {segment!r}: object {object_name}, which holds offset {offset} by "
            "the newest catalog, is missing:"
            " export the catalog and read again; if it stays missing, the store has lost it"
        )
        self.segment = segment
        self.offset = offset
        self.object_name = object_name


class SegmentFramingError(SourceError):
    """A segment's bytes are not the rows they were said to be.

    The caller's move: another `format`, or another border.

    `offset` is where the row begins that is none.
    """

    def __init__(self, segment: str, offset: int, detail: str) -> None:
        super().__init__(f"segment {segment!r} at offset {offset}: {detail}")
        self.segment = segment
        self.offset = offset


class SegmentEncodingError(SourceError):
    """A row asked for as text is no UTF-8.

    The caller's move: `payload` in place of `value`, or `invalidUtf8`.

    `offset` is where the row begins.
    """

    def __init__(self, segment: str, offset: int, detail: str) -> None:
        super().__init__(
            f"segment {segment!r}: the row at offset {offset} is no UTF-8 text, which "
            f"column value has: {detail}"
            " (invalidUtf8=replace puts U+FFFD in its place, invalidUtf8=binary gives "
            "bytes, column payload always does)"
        )
        self.segment = segment
        self.offset = offset


class SourceStartError(SourceError):
    """`startingOffsets` names a segment that is not read, or a place behind its end.

    The caller's move.
    """


class SparkVersionError(SourceError):
    """This release of Spark lacks what is asked for.

    The caller's move: a newer one, or what is named.
    """


class TableOptionsError(SourceError):
    """Spark keeps no options of a table made of a Python data source.

    The caller's move: a view, or WITH.
    """

    def __init__(self) -> None:
        super().__init__(
            "CREATE TABLE ... USING segmentstore cannot be: Spark forgets the options of "
            "such a table, and with them"
            " what is to be read. Use CREATE TEMPORARY VIEW name USING segmentstore "
            "OPTIONS (path '...', ...), or of"
            " a table that is there SELECT ... FROM name WITH (path = '...', ...)"
        )
