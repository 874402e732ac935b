"""The client: a store that another process has open, with the API of an embedded one."""
