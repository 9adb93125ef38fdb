"""`penstock` whose fold stops half-way until the file `go` lies in the folder it was started in.

It folds a tenth of what others do at a time, so that a tenth of a long log is one as long to it.
"""

from __future__ import annotations

import threading
from pathlib import Path

from penstock.cli.main import main
from penstock.log import recover
from penstock.server import services
from penstock.server.base import progress

GO = Path("go")


class HeldProgress(progress.Progress):
    """Holds the thread that tells it of the first records."""

    def watch(self, stage: str, done: int, total: int) -> None:
        """The real thing, and then the wait."""
        super().watch(stage, done, total)
        if stage == "folding" and done:
            pause = threading.Event()
            while not GO.exists():
                pause.wait(0.01)
                super().watch(stage, done, total)  # it may be called off


if __name__ == "__main__":
    services.Progress = HeldProgress  # type: ignore[misc]
    recover._ROWS, recover._BLOCK = recover._ROWS // 10, recover._BLOCK // 10
    main()
