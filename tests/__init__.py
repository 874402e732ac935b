"""Tests of the whole project: docs/testing.md."""

import os
import sys

# Workers, and the hundreds of processes that tests start, import the engine: it takes twice as long
# where each compiles it anew. Here, before any module of the engine is imported.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
