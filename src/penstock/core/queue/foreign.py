"""What another site may lease: it is in the queue, is seen and counted, and nobody here is given it.

The claims to messages outlive every move of theirs, so what was leased or delayed as its owner changed stands here as
soon as it comes back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from penstock.core.links.ownership import RANKS, WHYS, Claim, Claims, Span
from penstock.core.links.sharing import HERE, Peers
from penstock.core.queue.order.main_order import Main
from penstock.core.queue.order.returned import Returned, Waiting
from penstock.core.queue.order.runs import Run, packed, view
from penstock.core.queue.settling.attempts import FRESH
from penstock.core.state.lsns import Ints
from penstock.records.chunks import Chunk

_TOLD_OF = 256
"""Asks, and changes of owners, of which people are told."""


class Foreign(Waiting):
    """The messages of other sites, and the claims to all messages of the queue."""

    __slots__ = ("asked", "changed", "claims", "coming", "given", "needed", "open", "peers", "taken")

    def __init__(self, peers: Peers) -> None:
        """peers: of the core, for all queues."""
        super().__init__(Main(), Returned())
        self.peers = peers
        self.claims = Claims(peers.here)
        self.needed = 0  # claims that were left when those of what is gone were looked for last
        self.coming: Claim | None = None  # whose newcomers are; None: this site's
        self.asked = deque[tuple[int, Ints]](maxlen=_TOLD_OF)  # asks of late: when, and what for, as pairs
        self.changed = deque[tuple[int, Ints]](maxlen=_TOLD_OF)  # when what changed its owner
        self.open = False  # what comes now was let in at another site
        self.taken = 0  # messages that came to be this site's, since the start
        self.given = 0  # and that ceased to be

    def before(self, place: int) -> bool:
        """Whether something waits that stands before this place."""
        return self.head()[0] < place

    def history(self, lsn: int) -> tuple[int, list[int]]:
        """When a message changed its owner last, 0 where that is not known, and when it was asked for since."""
        since = max((when for when, pairs in self.changed if _among(lsn, pairs)), default=0)
        return since, [when for when, pairs in self.asked if when >= since and _among(lsn, pairs)]

    def extract(self, wanted: Chunk) -> list[Run]:
        return super().extract(wanted) if len(wanted) else []

    def keep(self, run: Run) -> list[Run]:
        """Of a run that is ready the part of other sites stays here; the rest is given back."""
        away, ours = self.parted([run])
        for kept in away:
            kept.deadline, kept.by, kept.granted = 0, None, 0
            if kept.tally == FRESH and not kept.place and kept.chunk[0] > self.main.last():
                self.main.append(kept.chunk, solid=False)
            else:
                self.returned.push(kept)
        return ours

    def parted(self, runs: Sequence[Run]) -> tuple[list[Run], list[Run]]:
        """Runs, wherever they stood, of other sites' messages and of this one's."""
        away, ours = list[Run](), list[Run]()
        for run in runs:
            elsewhere = self._elsewhere(run.chunk)
            for part, mask in ((away, elsewhere), (ours, ~elsewhere)):
                if mask.all():
                    part.append(run)
                elif mask.any():
                    part.append(run.part(packed(view(run.chunk)[mask]), False))
        return away, ours

    def _elsewhere(self, chunk: Chunk) -> npt.NDArray[np.bool_]:
        """Which of them are other sites'."""
        out = np.zeros(len(chunk), dtype=np.bool_)
        here, spans = self.claims.here.owner, self.claims.spans(chunk[0], chunk[-1] + 1)
        theirs = as_pairs([(low, high) for low, high, claim in spans if claim.owner != here])
        for start, stop in np.searchsorted(view(chunk), theirs).tolist():
            out[start:stop] = True
        return out

    def spans(self) -> list[tuple[int, int, int, int]]:
        """Every claim: LSNs [a, b), the number of its site, and its serial and reason as one number."""
        number = self.peers.number
        return [
            (low, high, number(claim.owner) or HERE, claim.serial * len(WHYS) + RANKS[claim.why])
            for low, high, claim in self.claims.spans()
        ]

    def load(self, lsns: Ints, owners: Ints, serials: Ints) -> None:
        """The claims to these messages, as `spans` told."""
        there = (owners > 0) | (serials > 0)
        table = np.stack((lsns, owners, serials), axis=1)[there]
        if not len(table):
            return
        cuts = np.flatnonzero((np.diff(table[:, 0]) != 1) | (np.diff(table[:, 1:], axis=0) != 0).any(axis=1)) + 1
        for piece in np.split(table, cuts):
            first, owner, told = piece[0].tolist()
            serial, rank = divmod(told, len(WHYS))
            name = self.claims.here.owner if owner == HERE else self.peers.name(owner)
            self.claims.put(first, int(piece[-1, 0]) + 1, Claim(name, serial, WHYS[rank]))

    def renamed(self) -> None:
        """This site is called otherwise now."""
        old, self.claims = self.claims, Claims(self.peers.here)
        for low, high, claim in old.spans():
            mine = claim.owner == old.here.owner
            self.claims.put(low, high, claim._replace(owner=self.peers.here) if mine else claim)


def as_pairs(spans: Sequence[Span]) -> Ints:
    """Spans that are kept for a while: thousands of them in little room."""
    return np.array(spans, dtype=np.int64).reshape(-1, 2)


def _among(lsn: int, pairs: Ints) -> bool:
    return bool(((pairs[:, 0] <= lsn) & (lsn < pairs[:, 1])).any())
