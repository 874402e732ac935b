"""Tests of the wire server."""
