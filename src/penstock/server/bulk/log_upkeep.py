"""Backup, verify and audit of the log that a server writes to: what it must hold still meanwhile, and the child's work.

Any thread but the loop's calls these, and waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from penstock.log.rewrite import Made, Order, made_of, plain_order
from penstock.server.bulk.process import Bulk, on_log

if TYPE_CHECKING:
    from penstock.server.engine import Engine
    from penstock.server.flight.handover import Handover
    from penstock.server.flight.sink_stages import Stages


PAUSE_S = 0.05
"""Between two looks whether the archive rests."""


class Upkeep:
    """Work on a whole log, one server's."""

    def __init__(self, bulk: Bulk, engine: Engine, handover: Handover, stages: Stages, server: str) -> None:
        self._bulk = bulk
        self._engine = engine
        self._handover = handover
        self._stages = stages
        self._server = server
        self._alone = threading.Lock()

    def verify(self, gone: Callable[[], bool]) -> dict[str, Any]:
        """What `penstock log verify` tells."""
        found = self._run("verify", gone)
        if (archive := self._engine.archive) is not None:
            told = self._run("archive_check", gone, folder=archive.folder)
            found["damage"] += told.pop("damage", [])
            found["archive"] = told or None
        return found

    def audit(self, gone: Callable[[], bool]) -> dict[str, Any]:
        return self._run("audit", gone)

    def backup(self, target: str, copy: bool, gone: Callable[[], bool]) -> dict[str, Any]:
        """A backup into a folder of this machine; see `backup.run`.  One after the other."""
        archive = self._engine.archive
        with self._alone, self._still(gone):
            folder = "" if archive is None else archive.folder
            return self._run("backup", gone, target=target, copy=copy, server=self._server, archive=folder)

    def _run(self, job: str, gone: Callable[[], bool], **values: object) -> dict[str, Any]:
        def ask(listed: dict[str, object]) -> dict[str, Any]:
            return self._bulk.call(job, {**values, "log": listed}, wanted=lambda: not gone())

        with self._held(gone):
            return on_log(self._engine.log, ask)

    @contextmanager
    def _held(self, gone: Callable[[], bool]) -> Generator[None]:
        """No segment goes, none is compacted, and no day of the archive goes."""
        first = self._engine.past.first_lsn
        hold: Callable[[], int | None] = lambda: first  # noqa: E731 - a name, so that it can be found again
        readers = self._engine.readers
        self._handover.call(partial(readers.append, hold), gone, durable=False)
        try:
            yield
        finally:
            self._handover.post(partial(readers.remove, hold))

    @contextmanager
    def _still(self, gone: Callable[[], bool]) -> Generator[None]:
        """No stage goes: what the log has decided may still be copied from it.  The archive stays as it is.

        What is archived then lies below what is durable when the log is listed.
        """
        archive, rest = self._engine.archive, threading.Event()
        self._stages.freeze()
        try:
            if archive is not None:
                self._handover.call(archive.pause, gone, durable=False)
                while archive.running and not gone():
                    rest.wait(PAUSE_S)
            yield
        finally:
            if archive is not None:
                self._handover.post(archive.resume)
            self._stages.thaw()


class Compactor:
    """What `server.upkeep.compaction.Elsewhere` asks for.  The child leaves a whole file beside the old, or none."""

    def __init__(self, bulk: Bulk) -> None:
        self._bulk = bulk

    async def rewrite(self, order: Order) -> Made:
        """Raises what the job raises, and Unavailable when the child died under it or could not be started."""
        return made_of(await self._bulk.run("rewrite", **plain_order(order)))

    async def index(self, first: int) -> int:
        return cast("int", (await self._bulk.run("index", first=first))["size"])
