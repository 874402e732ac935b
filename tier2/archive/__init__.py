"""The archive of the log: closed ledgers as two objects each, in the format of Pulsar's PIP-17
(docs/formats/archive-objects.md), and lists of them (docs/formats/archive-parts.md).
"""
