"""`penstock` whose fold stops half-way until the file `go` lies in the folder it was started in."""

from __future__ import annotations

import threading
from pathlib import Path

from penstock.cli.main import main
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
    progress.Progress = HeldProgress  # type: ignore[misc]
    main()
