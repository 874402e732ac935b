"""Tables on ordinary segments: Pravega's hash tables and fixed-key tables, without any network.

`table_service.TableService` is the API; values are in `table_types`, errors in `errors`. How it
works: docs/decisions/0061-tables-are-segments.md.
"""
