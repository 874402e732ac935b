"""Applications built on the store, tested in the simulated world: how to prove one of your own."""
