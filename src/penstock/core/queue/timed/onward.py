"""The queue of an exchange at which messages wait: what is due there goes on to the exchange and to nobody else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.effects import Sink
from penstock.core.queue.figures import Figures
from penstock.core.queue.settling.letters import Letter
from penstock.records.causes import DUE

if TYPE_CHECKING:
    from penstock.core.queue.view import Queue

STEP = 4096
"""Messages that set out in one step."""


def depart(queue: Queue, sink: Sink) -> None:
    """What is ready leaves: its body is asked for, and it counts as dying until it is published."""
    runs = queue.take_ready(STEP)
    if queue.figures is None:
        queue.figures = Figures()
    queue.figures.expired(DUE, sum(len(run.chunk) for run in runs))
    queue.mourned().add(Letter(runs, DUE), sink)
    queue.hungry = queue.hungry or queue.ready > 0
