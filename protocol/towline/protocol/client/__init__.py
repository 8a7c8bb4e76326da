"""The reference client: a machine without I/O, and the socket shell around it. Start with `Client`."""

from towline.protocol.client.connect import Client

__all__ = ["Client"]
