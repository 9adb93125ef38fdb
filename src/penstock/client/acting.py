"""The one call that all others of administration are made of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class Acting(ABC):
    """Something that carries out server actions, within a vhost."""

    @abstractmethod
    def action(self, name: str, *, with_vhost: bool = True, **fields: object) -> dict[str, Any]:
        """The answer of a server action by its name; fields that are None are left out."""

    @property
    @abstractmethod
    def vhost(self) -> str | None:
        """That of the connection."""
