"""Reading segments by Spark: plans, partitions, fetching, framing; batches and streams."""
