"""The reference client: a machine without I/O, and the socket shell around it."""
