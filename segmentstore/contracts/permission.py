"""Permission: what a user may do to a resource."""

from __future__ import annotations

import enum


class Permission(enum.IntEnum):
    """The greater one includes the other. The names are Pravega's."""

    READ = 1
    READ_UPDATE = 2
