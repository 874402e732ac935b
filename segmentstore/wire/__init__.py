"""Pravega's segment store wire protocol: commands, their codec, frames and append blocks.

Pure: bytes in, commands out, and back. Server and client share it. The format's page:
docs/formats/wire.md.
"""
