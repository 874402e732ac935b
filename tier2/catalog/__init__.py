"""The catalog snapshot: what a container's metadata say, as Parquet in Tier 2, for jobs that never
see the engine.

The format's page: docs/formats/catalog.md. Only here and in `tier2.spark` is pyarrow imported, and
nothing imports these rooms at its top but they themselves: an engine that exports nothing does not
pay for it.
"""
