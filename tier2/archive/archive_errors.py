"""What an object storage raises, as callers of the archive see it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from segmentstore.contracts.errors import (
    DataCorruptionError,
    InvalidArgumentError,
    TierUnavailableError,
)
from segmentstore.contracts.ledgers import LedgerNotFoundError
from tier2.metadata_files import UNREADABLE
from tier2.object_storage import (
    InvalidRangeError,
    ObjectExistsError,
    ObjectNotFoundError,
    StorageUnavailableError,
)

ARCHIVE_TIER = "archive"


@contextmanager
def archive_errors(ledger_id: int, place: str) -> Iterator[None]:
    """Translate what calls of an object storage raise about a ledger's objects."""
    try:
        yield
    except ObjectNotFoundError as error:
        raise LedgerNotFoundError(ledger_id, f"the archive ({place})") from error
    except InvalidRangeError as error:
        raise DataCorruptionError(error.name, f"it ends too early: {error}") from error
    except ObjectExistsError as error:
        raise InvalidArgumentError(
            "uid", place, "an attempt of this uid has left objects: delete them, and take a new uid"
        ) from error
    except StorageUnavailableError as error:
        raise TierUnavailableError(ARCHIVE_TIER, str(error)) from error


@contextmanager
def reading_errors(ledger_id: int, place: str) -> Iterator[None]:
    """As `archive_errors`, of a ledger that is archived: metadata that cannot be read are damage,
    which does not pass.
    """
    with archive_errors(ledger_id, place):
        try:
            yield
        except StorageUnavailableError as error:
            if error.kind != UNREADABLE:
                raise
            raise DataCorruptionError(place, str(error)) from error
