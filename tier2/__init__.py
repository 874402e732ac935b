"""Long-term storage: the block object format and the object storages that hold it."""
