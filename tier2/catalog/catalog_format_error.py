"""The one error of the catalog: what is in Tier 2 is no snapshot that this program can read."""

from __future__ import annotations


class CatalogFormatError(Exception):
    """A snapshot, or a table of one, is not what it should be.

    The message names the object and what is wrong.
    """
