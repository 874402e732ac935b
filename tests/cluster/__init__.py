"""Tests of the hosts of a store, and of the assignment of containers to them."""
