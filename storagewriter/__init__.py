"""From the log to Tier 2: what to flush, in which objects, and what the log may then forget."""
