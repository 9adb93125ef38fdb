"""Damaged batches that this process has met: each is told once with file, batch and LSN, and shown while it is there.

A flipped bit must cost its own batch and nothing else.  Who reads `around` damage gets all other rows:

* a delivery goes on without them, and they are set aside: they stay in their queues, leased to nobody, in nobody's
  backlog, until somebody settles them or a restart finds them readable (`core.queue.aside`); what is delivered at most
  once, or to who never acknowledges, was settled before it was read, and is lost;
* a filter that looks through a queue does not match them;
* compaction leaves the file alone, replay and `verify` say what is wrong and end.

A batch that the disk cannot read, and a file that is gone, count as damage.
"""

from __future__ import annotations

import errno
import logging
import threading

from penstock.errors import LogDamaged

logger = logging.getLogger("penstock.log")

KEPT = 1000
"""Sentences that are kept; of more damage only the number."""

UNREADABLE = frozenset({errno.EIO, errno.ENOENT})
"""What the disk says of bytes that are not there any more, whoever asks again."""


class Damage:
    """The damaged batches of one log.  Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._met = dict[tuple[str, int], str]()  # by file and number of the batch

    def met(self, name: str, number: int, error: LogDamaged) -> None:
        """Somebody wanted rows of this batch."""
        with self._lock:
            known = (name, number) in self._met
            self._met[name, number] = str(error) if len(self._met) < KEPT else ""
        if not known:
            logger.error("%s; what is stored there is not delivered", error)

    def forget(self, name: str) -> None:
        """The file is going away."""
        with self._lock:
            self._met = {key: said for key, said in self._met.items() if key[0] != name}

    @property
    def batches(self) -> int:
        """How many there are."""
        return len(self._met)

    def sentences(self, most: int) -> list[str]:
        """What is wrong, in the order in which it was met."""
        with self._lock:
            return [said for said in self._met.values() if said][:most]
