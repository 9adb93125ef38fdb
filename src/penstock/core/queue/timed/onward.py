"""The queue of an exchange at which messages wait: what is due there goes on to the exchange and to nobody else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.effects import Sink
from penstock.core.publishing.waiting import DUE
from penstock.core.queue.figures import Figures

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
    queue.mourned().add(runs, DUE, "", sink)
    queue.hungry = queue.hungry or queue.ready > 0
