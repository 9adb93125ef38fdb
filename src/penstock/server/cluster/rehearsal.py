"""What of this member's settings file a takeover would leave out, looked for while it follows.

The copy of the log is read as a takeover reads it, the settings are applied to what it says, and all of that is
forgotten.  It takes as long as the first half of a takeover, so it is done once a leader is followed, and rarely again:
in a thread of a server that has nothing else to do, which gives up as soon as this member is to lead.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import field
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.config.queue_arguments import why_impossible
from penstock.core.broker import Core
from penstock.errors import PenstockError, SettingsError
from penstock.log.disk import OsDisk
from penstock.log.recover import tables
from penstock.records.chunks import Now
from penstock.records.dataclass import dataclass
from penstock.server.alarms import not_in_force
from penstock.server.base import allocator
from penstock.server.opening import apply_settings, new_times
from penstock.server.upkeep.offline import ReadOnly, folded

if TYPE_CHECKING:
    from penstock.config.settings import Settings
    from penstock.ports import Disk
    from penstock.server.cluster.leading import Cluster

logger = logging.getLogger("penstock.cluster")

AGAIN_S = 3600.0
"""What the log has may change meanwhile: a queue has messages, an exchange has gone."""

CALM_S = 2.0
"""A leader is followed for so long before: a takeover has just ended, and another one may follow."""

Over = Callable[[], bool]


class GivenUp(Exception):
    """This member is to lead."""


def left_out(disk: Disk, settings: Settings, format: int | None = None, over: Over = bool) -> list[str]:
    """Each thing of the settings that a takeover would leave out, and why, by the log of a folder that somebody has.

    format: what the cluster writes.  over: asked now and then; GivenUp when it is.  PenstockError, OSError: not known.
    """

    def watched() -> Iterator[pa.Table]:
        for table in tables(log.catalog, log.vias, log.after):
            if over():
                raise GivenUp
            yield table

    with closing(ReadOnly(disk)) as log:
        state = folded(log.start, watched())
        now = Now(time.time_ns() // 1000, time.monotonic_ns() // 1000)
        core = Core.restore(
            state, origin=log.recovery.origin, actions=settings.actions, instance=settings.server.name, now=now,
            refuse=why_impossible,
        )  # fmt: skip
    if over():
        raise GivenUp
    if format is not None:
        core.write_as(format)
    core.boot(now, clean=False, next_lsn=state.last_lsn + 1)
    found = list[SettingsError]()
    places = dict.fromkeys(new_times(core, settings), state.last_lsn)  # how many would leave a queue is no matter here
    apply_settings(core, settings, lambda: now, places, found.append)
    return [str(error) for error in found]


@dataclass(eq=False)
class Rehearsal:
    """Of one member, until it leads.  Belongs to the loop's thread."""

    _settings: Settings
    _cluster: Cluster  # whose `left_out` is what was found
    _say: Callable[[str], object]
    _call_soon: Callable[[Callable[[], object]], object]  # from any thread
    _term: int = field(default=-1, init=False)  # of the leader that was followed at the last look
    _at: float = field(default=0.0, init=False)  # when to look again
    _runs: bool = field(default=False, init=False)
    _over: threading.Event = field(default_factory=threading.Event, init=False)

    def look(self) -> None:
        """Its member has said something."""
        known = self._cluster.known
        if self._runs or self._over.is_set() or known["role"] != "following" or not known.get("connected"):
            return
        now, term = time.monotonic(), known.get("term", 0)
        if term != self._term:
            self._term, self._at = term, now + CALM_S
        if now >= self._at:
            self._at, self._runs = now + AGAIN_S, True
            work = threading.Thread(
                target=self._work, args=(known.get("format"),), name="penstock-rehearsal", daemon=True
            )
            work.start()

    def end(self) -> None:
        """It is to lead, or stops."""
        self._over.set()

    def _work(self, format: int | None) -> None:
        try:
            found = left_out(OsDisk(self._settings.server.data), self._settings, format, self._over.is_set)
        except GivenUp:
            return
        except (PenstockError, OSError) as error:  # the member changes the files meanwhile, and says what is wrong
            logger.info("the settings file could not be held against the copy of the log: %s", error)
            self._call_soon(self._again)
        else:
            self._call_soon(lambda: self._found(found))
        finally:
            allocator.give_back()

    def _again(self) -> None:
        self._runs, self._at = False, time.monotonic() + CALM_S

    def _found(self, found: Sequence[str]) -> None:
        self._runs = False
        before, self._cluster.left_out = self._cluster.left_out, found
        if self._over.is_set() or list(found) == list(before):
            return
        if found:
            self._say(f"cluster: warning: once this member leads, {not_in_force(found)}")
        else:
            self._say("cluster: once this member leads, all of its settings file is in force again")
