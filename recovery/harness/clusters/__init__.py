"""A real cluster on this machine, under load, while its processes and links fail in turn."""
