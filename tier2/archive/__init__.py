"""The archive of the log: closed ledgers as two objects each, in the format of Pulsar's PIP-17.

The format's page: docs/formats/archive-objects.md.
"""
