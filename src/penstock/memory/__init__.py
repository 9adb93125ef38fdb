"""Bodies in RAM: caches under one byte budget.  Knows positions and bytes, no queue rule."""

from penstock.memory.caches import Caches
from penstock.memory.loader import Loader
from penstock.memory.slab import Piece, piece_of

__all__ = ["Caches", "Loader", "Piece", "piece_of"]
