"""The server: segments over TCP in Pravega's wire protocol (docs/formats/wire.md)."""
