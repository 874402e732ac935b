"""Writing to segments by Spark: rows of an epoch come into a segment whole and once."""
