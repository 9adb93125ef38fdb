"""Bodies in RAM: caches under one byte budget.  Knows positions and bytes, no queue rule."""

from penstock.memory.bodies import BodyCache, Piece

__all__ = ["BodyCache", "Piece"]
