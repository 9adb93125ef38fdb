"""`penstock` whose caches have no budget at all: every body that is durable is read back from the log."""

from __future__ import annotations

from penstock.cli.main import main
from penstock.memory.caches import Caches
from penstock.server import app


class NoCaches(Caches):
    """Caches that keep nothing, whatever the settings say."""

    def __init__(self, budget: int) -> None:
        super().__init__(min(budget, 0))


if __name__ == "__main__":
    app.Caches = NoCaches  # type: ignore[misc]
    main()
