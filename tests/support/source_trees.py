"""Syntax trees of sources, for tests that check what the code says."""

from __future__ import annotations

import ast
import gc


def parsed(source: str | bytes) -> ast.Module:
    """The syntax tree of a source.

    No garbage is collected meanwhile. With it may go a future whose error no test awaited; asyncio
    logs such an error with its traceback, and `traceback` parses the lines of it. CPython 3.11
    fails a parse that has another one inside: `AST constructor recursion depth mismatch`.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(source)
    finally:
        if was_enabled:
            gc.enable()
