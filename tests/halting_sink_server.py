"""`penstock` that copies one chunk of a sink batch, and no more while the file lies there that `SINK_HALT` names."""

from __future__ import annotations

import os
import threading
from itertools import count
from pathlib import Path
from typing import Any

from penstock.cli.main import main
from penstock.server.flight.copier import Copier

HALT = Path(os.environ["SINK_HALT"])
CHUNKS = count()


def halting(taken: Any) -> Any:
    """What hands a chunk over, which waits before every one but the first."""

    def later(*of: Any) -> Any:
        if next(CHUNKS):
            pause = threading.Event()
            while HALT.exists():
                pause.wait(0.01)
        return taken(*of)

    return later


if __name__ == "__main__":
    Copier._taken = halting(Copier._taken)  # type: ignore[method-assign]
    main()
