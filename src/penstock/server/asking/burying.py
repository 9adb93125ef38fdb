"""Answers that promise what was settled, and so wait for its dead letters, whose bodies may have to be read first.

What dies is in no record before its letters are written: removal and letter are one group.  Whoever is told that a
message was rejected finds its letter, also after a crash.  A letter that a full queue refuses is waited for no longer:
it may take hours.  Of a broken log there is none, and who waits is told by what he does then.  Nor is there one of a
queue that a fault has stopped: who waits is refused, and the message is there again after a start.

    settle -> `note` ............ -> a turn that has the letters -> `then`, which waits for the disk
                                     a queue that was stopped ----> `refuse`
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from penstock.core.effects import Dying, Effect
from penstock.core.queue.stopped import why_stopped

if TYPE_CHECKING:
    from penstock.core.queue.queue import Queue
    from penstock.errors import PenstockError
    from penstock.server.base.faults import Asker
    from penstock.server.base.runtime import Runtime

    Refuse = Callable[[PenstockError], None]
    """Tells who waits why he does so in vain."""


class Burying:
    """The answers of one who settles, in their order.  All methods belong to the loop."""

    __slots__ = ("_dying", "_runtime", "_waiting", "asker")

    def __init__(self, runtime: Runtime, asker: Asker | None = None) -> None:
        """asker: who is told if this fails."""
        self._runtime = runtime
        self.asker = asker
        self._dying: dict[Queue, int] = {}  # where something has to have its letters, with the mark there
        self._waiting: deque[tuple[dict[Queue, int], Callable[[], None], Refuse]] = deque()

    @property
    def noted(self) -> bool:
        """Whether something is waited for from here on."""
        return bool(self._dying)

    def note(self, queue: Queue) -> None:
        """What dies in a queue now is waited for."""
        if queue.dying:
            self._dying[queue] = queue.died

    def note_effects(self, effects: Iterable[Effect]) -> None:
        """What a command has let die, by its effects, is waited for."""
        for effect in effects:
            if isinstance(effect, Dying) and (queue := self._runtime.core.queue_by_id(effect.queue)) is not None:
                self.note(queue)

    def when_buried(self, then: Callable[[], None], refuse: Refuse) -> None:
        """Do it when what was noted has its letters; now, if it has them.  refuse: some will have none."""
        dying, self._dying = self._dying, {}
        waits = bool(self._waiting)  # and then the end of this turn is
        self._waiting.append((dying, then, refuse))
        if not waits:
            self._look()

    def _look(self) -> None:
        """Let those go on who may; the others at the end of a turn."""
        waiting = self._waiting
        while waiting:
            dying, then, refuse = waiting[0]
            open_ = [] if self._runtime.broken is not None else [one for one in dying if not one.is_buried(dying[one])]
            if open_ and not any(queue.stopped for queue in open_):
                self._runtime.burying.append(self._look)
                return
            waiting.popleft()
            if open_:
                refuse(why_stopped(next(queue for queue in open_ if queue.stopped)))
            else:
                then()

    def forget(self) -> None:
        """Nobody waits any more."""
        self._waiting.clear()
