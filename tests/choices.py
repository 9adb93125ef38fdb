"""How much random tests do, and where their chance begins.

A usual run chooses what every usual run chooses: what fails in it fails because of what has changed since.  A hunt,
which is a run with more effort (`make soak*`), chooses anew each time.
"""

from __future__ import annotations

import os
import random

EFFORT = int(os.environ.get("PENSTOCK_EFFORT", "1"))
"""By how much random and crash tests multiply their work: 1, or what `PENSTOCK_EFFORT` says."""

SEED = int(os.environ.get("PENSTOCK_SEED", "0")) or (1 if EFFORT == 1 else random.randrange(1, 1 << 30))
"""What `PENSTOCK_SEED` says; a failure names it."""
