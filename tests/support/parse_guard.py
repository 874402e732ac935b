"""No garbage is collected while a source is parsed, in every process of the test run.

With garbage may go a future whose error no test awaited. asyncio logs such an error with its
traceback, and `traceback` parses the lines of it. CPython 3.11 fails a parse that has
another one inside: `AST constructor recursion depth mismatch`
(https://github.com/python/cpython/issues/106905). Our own tests parse, and so do `inspect`,
pytest and hypothesis.
"""

from __future__ import annotations

import ast
import functools
import gc
from typing import Any

_parse = ast.parse


@functools.wraps(_parse)
def _guarded(*arguments: Any, **options: Any) -> Any:
    # Not `collector_paused`: a test may enable the collector within such a pause.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return _parse(*arguments, **options)
    finally:
        if was_enabled:
            gc.enable()


def guard_parsing() -> None:
    """Let nothing be collected during `ast.parse`, whatever calls it. Twice is the same as once."""
    ast.parse = _guarded
