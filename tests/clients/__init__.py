"""Pravega's own clients, unchanged, against a served store."""
