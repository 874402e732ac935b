"""`python -m segmentstore`: the command line."""

from __future__ import annotations

from segmentstore.cli import main

if __name__ == "__main__":
    main()
