"""Who is sent a run's frames, as a subscription sees it.

Promises nothing; `socket` and `sse` keep what is asked here. Read `watching` next, which does the asking.
"""

from typing import Protocol

from towline.protocol import frames as f


class Peer(Protocol):
    """A socket, or a stream."""

    @property
    def is_lagging(self) -> bool:
        """Whether the peer has more to take than it should be sent."""
        ...

    @property
    def takes_wires(self) -> bool:
        """Whether `write` is of any use: else it never writes."""
        ...

    def write(self, wire: bytes, /) -> bool:
        """Writes frames that are ready, at once or not at all; whether it did."""
        ...

    async def ready(self) -> None:
        """Returns once the peer does not lag."""
        ...

    async def send(self, frame: f.ServerFrame) -> None:
        """Sends a frame; returns when the socket took it."""
        ...

    async def lose_place(self) -> None:
        """Ends the socket: the client must come back with its cursors."""
        ...
