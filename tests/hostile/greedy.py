"""`python -m hostile.greedy ADDRESS PASSWORD MIB [known]`: an action of so many MiB, and what becomes of it.

It has them several times, so it is a process of its own.  known: after a small one, which was answered.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from subprocess import CompletedProcess

from forked import ran
from hostile.flight_wire import FlightWire, action

TESTS = Path(__file__).resolve().parents[1]


def greedy(address: str, password: str, mib: int, *more: str) -> CompletedProcess[str]:
    """This program, to its end."""
    environ = {"PYTHONPATH": os.pathsep.join((str(TESTS), str(TESTS.parent / "src")))}
    return ran("-m", "hostile.greedy", address, password, str(mib), *more, env=environ, seconds=120.0)


def main() -> None:
    address, password, mib, *known = sys.argv[1:]
    with FlightWire(address, "guest", password) as wire:
        if known:
            wire.one("DoAction", action(b"health", b"{}"))
        outcome = wire.one("DoAction", action(b"health", bytes(int(mib) << 20)), timeout=60)
        print(outcome.code.name, outcome.details)


if __name__ == "__main__":
    main()
