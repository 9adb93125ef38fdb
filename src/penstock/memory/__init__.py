"""Bodies in RAM: caches under one byte budget.  Knows positions and bytes, no queue rule."""
