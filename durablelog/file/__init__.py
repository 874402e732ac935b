"""The file implementation of DurableDataLog: the embedded default."""
