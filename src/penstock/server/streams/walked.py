"""How far readers of streams in log mode have looked, beside what the log says: it is told again after a start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.server.streams.ahead import Ahead

if TYPE_CHECKING:
    from penstock.server.runtime import Runtime


class Walked:
    """How far readers in log mode have looked, when they were level, and how much is before them.

    Of this process alone, and of the loop.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.ahead = Ahead(runtime, self)
        self._upto = dict[str, tuple[int, int]]()  # start of the question, up to where it found nothing
        self._level = dict[
            str, int
        ]()  # microseconds since the epoch: it had everything then, or up to a message of then

    def looked(self, name: str, start: int, upto: int) -> None:
        """Nothing for this stream lies in [start, upto)."""
        self._upto[name] = (start, upto)

    def begin(self, name: str, start: int) -> int:
        """Where to look on, for what follows `start`."""
        asked, upto = self._upto.get(name, (start, start))
        return upto if asked == start else start

    def level(self, name: str, time: int) -> None:
        """Nothing older than `time` is left for it."""
        self._level[name] = max(time, self._level.get(name, 0))

    def since(self, name: str) -> int | None:
        """The last such time."""
        return self._level.get(name)
