"""`python -m tier2.spark VERB ...`: the Spark jobs without the engine's command line."""

from __future__ import annotations

import sys

from tier2.spark.commands import main

if __name__ == "__main__":
    sys.exit(main())
