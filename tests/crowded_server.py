"""`penstock` whose last free descriptor is taken as soon as all doors listen, until there is a file `CROWDED_GO`."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

from penstock.cli.main import main
from penstock.server.lifecycle import Starting

GO = Path(os.environ["CROWDED_GO"])


class Crowd:
    """Whoever came."""

    def __init__(self) -> None:
        self.taken = list[int]()

    def come(self) -> None:
        """Take what is free."""
        with contextlib.suppress(OSError):  # there are no more
            while True:
                self.taken.append(os.open(os.devnull, os.O_RDONLY))
        threading.Thread(target=self._leave, daemon=True).start()

    def _leave(self) -> None:
        while not GO.exists():
            threading.Event().wait(0.02)
        for one in self.taken:
            os.close(one)


class CrowdedStart(Starting):
    """The real one, and then the crowd."""

    async def _open_http(self) -> None:
        await super()._open_http()
        Crowd().come()


if __name__ == "__main__":
    from penstock.server import app

    app.Starting = CrowdedStart  # type: ignore[misc]
    main()
