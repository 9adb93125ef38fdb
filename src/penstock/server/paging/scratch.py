"""The arenas of one server, one a file, and the pace at which state goes to them.

Once a second what is old goes there, so many arrays a step with pauses between, so that a step holds the loop for a
few milliseconds.  Now and then the pages of the files leave this process's memory; the system keeps them as long as
it has nothing better to keep.  A file that cannot grow is told once, and tried again at each look.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.memory.arena import Arena
from penstock.server.paging.file import ScratchFile, remove_left

if TYPE_CHECKING:
    from penstock.ports import Backing
    from penstock.server.engine import Engine

logger = logging.getLogger("penstock.server")

FOLDER = "paged"
SHARED = "state"
"""The file in the data folder that all share who name none."""

STEP = 64
"""Arrays that go to a file in one step: some 4 MiB, and a millisecond or two."""

PAUSE_S = 0.01
"""Between two steps."""

TIDY_BEATS = 5
"""Pages leave this process's memory once in so many seconds."""

Make = Callable[[Path], "Backing"]


class Scratch:
    """Arenas by the file that a queue names; "" is the one in the data folder."""

    def __init__(self, data: Path, make: Make = ScratchFile) -> None:
        self._data = data
        self._make = make
        self._told = set[str]()  # files that cannot grow
        self.arenas: dict[str, Arena] = {}

    def clear(self) -> None:
        """Remove what an earlier process left in the data folder, which this one holds.  Other files there stay."""
        path = self._path("")
        try:
            remove_left(path, marked=False)
        except OSError as error:
            logger.warning("%s stays where it is, and state stays in memory: %s", path, error.strerror)

    def _path(self, name: str) -> Path:
        return Path(name) if name else self._data / FOLDER / SHARED

    def __call__(self, name: str) -> Arena:
        """The arena of a file; the file is there when something lies in it."""
        arena = self.arenas.get(name)
        if arena is None:
            arena = self.arenas[name] = Arena(self._make(self._path(name)))
        return arena

    def look(self) -> None:
        """A look at the state begins: what could not grow is tried again, and told if it is news."""
        for name, arena in self.arenas.items():
            if arena.reason is None:
                self._told.discard(name)
            elif name not in self._told:
                self._told.add(name)
                logger.warning("state stays in memory: %s cannot grow: %s", self._path(name), arena.reason)
            arena.retry()

    @property
    def used(self) -> int:
        """Bytes of state in files."""
        return sum(arena.used for arena in self.arenas.values())

    @property
    def size(self) -> int:
        """Bytes of the files."""
        return sum(arena.size for arena in self.arenas.values())

    @property
    def refused(self) -> int:
        """Times that a file could not grow."""
        return sum(arena.refused for arena in self.arenas.values())

    def tidy(self) -> None:
        """Pages leave this process's memory.  Any thread."""
        for arena in tuple(self.arenas.values()):
            arena.tidy()

    def close(self) -> None:
        """The files go."""
        for arena in self.arenas.values():
            arena.close()


class Pager:
    """The pace.  For the loop's thread."""

    def __init__(
        self, engine: Engine, scratch: Scratch, pool: Executor, later: Callable[[float, Callable[[], None]], object]
    ) -> None:
        """later: run something after so many seconds.  pool: where pages are given back."""
        self._scratch = scratch
        self._engine = engine
        self._pool = pool
        self._later = later
        self._going_on = False
        self._ended = False
        self._beats = 0
        self._tidying: Future[None] | None = None

    def beat(self) -> None:
        """Once a second."""
        if not self._going_on:
            self._scratch.look()
            self._step()
        self._beats += 1
        if self._beats >= TIDY_BEATS and self._scratch.used and (self._tidying is None or self._tidying.done()):
            self._beats = 0
            self._tidying = self._pool.submit(self._scratch.tidy)

    def _step(self) -> None:
        self._going_on = not self._ended and self._engine.core.page(self._scratch, STEP)
        if self._going_on:
            self._later(PAUSE_S, self._step)

    def end(self) -> None:
        """Nothing goes there any more, and the files go."""
        self._ended = True
        self._scratch.close()
