"""Hosts of one store: what they report, and which of them serves which container."""
