"""The simulated world: one thread, virtual time, everything from one seed."""
