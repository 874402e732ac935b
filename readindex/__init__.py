"""Where every byte of a segment is: tail buffers, the RocksDB cache, and fetches from Tier 2."""
