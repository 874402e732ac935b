"""ArchiveFormatError: what the codecs of the archive raise for bytes that are not theirs."""

from __future__ import annotations


class ArchiveFormatError(ValueError):
    """Bytes are not what the format says; `reason` names the field."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
