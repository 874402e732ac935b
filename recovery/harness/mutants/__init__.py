"""Mutants: the engine broken on purpose, one rule at a time, to see that the harness notices."""
