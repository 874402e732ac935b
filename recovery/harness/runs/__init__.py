"""Runs: how the parts of the harness are put together: simulated, enumerated, killed, mutated, reported."""
