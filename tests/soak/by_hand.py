"""How a soak is run by hand: its options, the folder where all is kept, what it says meanwhile, and how it ends."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path


def options(description: str | None) -> argparse.ArgumentParser:
    """Those of every soak, for others to be added."""
    out = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    out.add_argument("--seconds", type=float, default=float(os.environ.get("PENSTOCK_SOAK_SECONDS", "3600")))
    seed = int(os.environ.get("PENSTOCK_SEED", "0")) or random.randrange(1 << 30)
    out.add_argument("--seed", type=int, default=seed)
    out.add_argument("--folder", type=Path, help="where all is kept; without one it goes when nothing is wrong")
    return out


class Run:
    """One that was begun."""

    def __init__(self, given: argparse.Namespace, name: str) -> None:
        """name: in that of its folder, where none was given."""
        self._stays = given.folder is not None
        self.folder: Path = given.folder or Path(tempfile.mkdtemp(prefix=f"penstock-{name}-"))
        self.folder.mkdir(parents=True, exist_ok=True)
        self._began = time.monotonic()
        print(f"PENSTOCK_SEED={given.seed}, {given.seconds:.0f} s in {self.folder}", flush=True)

    def say(self, line: str) -> None:
        """Something happened."""
        print(f"{time.monotonic() - self._began:7.1f} s  {line}", flush=True)

    def end(self, wrong: Sequence[str], *, good: bool = True) -> int:
        """Tell what is wrong; the status of the process.  good: whether nothing else is."""
        for line in wrong:
            print(f"WRONG: {line}")
        good = good and not wrong
        if good and not self._stays:
            shutil.rmtree(self.folder)
        return 0 if good else 1
