"""`penstock` whose log nobody tends by himself: retention and compaction happen when somebody asks, and only then."""

from __future__ import annotations

from penstock.cli.main import main
from penstock.server.upkeep.keeper import Keeper


def untended(self: Keeper) -> None:
    """Nothing is ever due."""


if __name__ == "__main__":
    Keeper.beat = untended  # type: ignore[method-assign]
    main()
