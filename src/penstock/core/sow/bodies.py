"""What the core asks of the shell about bodies of present records: those that are at hand."""

from __future__ import annotations

from typing import Protocol


class Bodies(Protocol):
    """Bodies of messages by LSN, as far as they are at hand."""

    def has(self, lsn: int) -> bool:
        """Whether `get` knows the message, be it that it cannot be read."""
        ...

    def get(self, lsn: int) -> bytes | None:
        """The body of a message; None when it is not at hand."""
        ...

    def keep(self, lsn: int, body: bytes | None) -> None:
        """A body that may be asked for again."""
        ...


class Nothing:
    """No bodies at all."""

    def has(self, lsn: int) -> bool:
        """No."""
        return False

    def get(self, lsn: int) -> bytes | None:
        """None."""
        return None

    def keep(self, lsn: int, body: bytes | None) -> None:
        """Forgets it."""
