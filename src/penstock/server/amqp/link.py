"""What a session needs of its transport."""

from __future__ import annotations

from typing import Protocol


class Link(Protocol):
    """One connection's bytes: out through here, in as calls of `Session.receive`."""

    def write(self, data: bytes) -> None:
        """Send, or buffer and call `pause_writing`."""
        ...

    def close(self) -> None:
        """Send what is buffered, then close."""
        ...

    def end_writing(self) -> None:
        """Send what is buffered, then say that nothing follows, where the transport can say that; read on."""
        ...

    def buffered(self) -> int:
        """Bytes written and not yet taken by the kernel."""
        ...

    def keep_below(self, size: int) -> None:
        """Call `pause_writing` beyond so many buffered bytes from now on, and at once if there are more."""
        ...

    def pause_reading(self) -> None:
        """Stop `receive` calls."""
        ...

    def resume_reading(self) -> None:
        """Let them come again."""
        ...
