"""Actions about replays and publishers: pause and go on, and where a publisher has got to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.records.rights import LOGIN
from penstock.server.flight.actions.action import Action, Table
from penstock.server.flight.calls import Caller
from penstock.server.replaying.follower import parse_rate
from penstock.wire.fields import Fields

if TYPE_CHECKING:
    from penstock.server.flight.handover import Handover
    from penstock.server.flight.reading.following import Following

Reply = Mapping[str, object]


class ReplayActions:
    """These actions, as rows of the table of all actions."""

    def __init__(self, handover: Handover, following: Following) -> None:
        self._handover = handover
        self._following = following
        self.table: Table = {
            "replay_pause": Action(self._pause, "id: send nothing more of this replay until it is resumed", LOGIN),
            "replay_resume": Action(self._resume, "id, rate: go on, from now on at this rate if one is given", LOGIN),
            "publisher": Action(self._publisher, "publisher: the highest sequence that is stored of it", LOGIN),
        }

    def _pause(self, caller: Caller, f: Fields) -> Reply:
        name = f.name("id")
        f.finish()

        def work() -> Reply:
            self._following.named(caller, name).pause()
            return {"id": name, "paused": True}

        return self._handover.call(work, caller.gone, durable=False)

    def _resume(self, caller: Caller, f: Fields) -> Reply:
        name, text = f.name("id"), f.optional_text("rate")
        f.finish()
        rate = None if text is None else parse_rate(text)

        def work() -> Reply:
            self._following.named(caller, name).resume(rate)
            return {"id": name, "paused": False}

        return self._handover.call(work, caller.gone, durable=False)

    def _publisher(self, caller: Caller, f: Fields) -> Reply:
        """Answered when everything that was decided is durable, so a client resends nothing that is stored."""
        name = f.name("publisher")
        f.finish()
        core = self._handover.engine.core
        return self._handover.call(lambda: {"publisher": name, "sequence": core.publishers.get(name, 0)}, caller.gone)
