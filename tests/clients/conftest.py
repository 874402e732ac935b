"""Which clients there can be here."""

from __future__ import annotations

import platform
import sys

HAS_WHEEL = (
    sys.version_info < (3, 12) and sys.platform == "linux" and platform.machine() == "x86_64"
)
"""As the extra `test` has it in pyproject.toml: there is no wheel for anything else."""
collect_ignore = [] if HAS_WHEEL else ["test_wheel.py"]
