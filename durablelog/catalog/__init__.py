"""The metadata catalog: a container's metadata as sorted keys on local disk, a view of the log."""
