"""A small Pravega Controller: scopes, streams, transactions, reader groups and key-value tables,
durable in a table of the store (docs/decisions/0062-controller.md).

Pure: `names`, `stream_model`, `stream_history`, `stream_cuts`, `stream_changes`, `retention_rules`,
`group_model`. Above them `controller.Controller` does what they say, and `controller_server` speaks
gRPC.
"""
