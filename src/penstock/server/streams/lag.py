"""Where every durable stream stands: what it has not read yet, how old that is, what it holds of the log.

In log mode the position is where the last planned range ends, or farther: where the reader's last question found
nothing more.  The rest is counted in LSNs, control records and other topics included: counting messages would read
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.records.dataclass import dataclass
from penstock.server.bulk.relay import bytes_between

if TYPE_CHECKING:
    from penstock.core.queue.queue import Queue
    from penstock.core.state.streams import StreamState
    from penstock.server.engine import Engine


@dataclass(frozen=True, slots=True)
class Standing:
    name: str
    mode: str
    lag: int  # messages that wait or are planned in queue mode; LSNs in log mode
    messages: int | None  # the same in messages; log mode: of its topic, its filter not asked; None: not counted yet
    age: float  # seconds by which it is behind; 0: it is level
    held_bytes: int  # of the log, that cannot go because of it
    idle: float  # seconds since somebody read it; -1: that is not known


def standings(engine: Engine) -> list[Standing]:
    """All streams by name.  On the loop."""
    segments, durable, now = engine.log.segments(), engine.log.durable, engine.now().wall
    queues = {queue.id: queue for queue in engine.core.queues()}
    ahead = engine.walked.ahead.look()
    out = list[Standing]()
    for name, state in sorted(engine.core.streams.states.items()):
        holds = state.holds_from
        held = 0 if holds is None else bytes_between(segments, holds, durable + 1)
        seen = engine.core.streams.keeping.last_read(name, state)
        idle = (now - seen) / 1e6 if seen else -1.0
        lag, age = _behind(engine, name, state, queues)
        messages = ahead.get(name) if state.mode == "log" else lag
        out.append(Standing(name, state.mode, lag, messages, max(age, 0.0), held, max(idle, 0.0) if seen else idle))
    return out


def _behind(engine: Engine, name: str, state: StreamState, queues: Mapping[int, Queue]) -> tuple[int, float]:
    """How much a stream has not read, and how many seconds it is behind."""
    if state.mode == "changes":
        return 0, 0.0  # it compares what is there, and has no place that could be behind
    if state.mode == "log":
        at = state.position
        lag = 0 if at is None else max(0, engine.log.durable + 1 - engine.walked.begin(name, at))
        level = engine.walked.since(name) or state.read
        return lag, (engine.now().wall - level) / 1e6 if lag and level else 0.0
    queue = queues.get(state.queue)
    if queue is None:
        return 0, 0.0
    lag = queue.ready + _planned(state)
    oldest = engine.core.stats(queue, engine.now())["seconds_behind"] if lag else None
    return lag, float(oldest) if isinstance(oldest, int | float) else 0.0


def facts(engine: Engine) -> list[dict[str, object]]:
    """All streams as JSON has them.  On the loop."""
    names = {queue.id: queue.name for queue in engine.core.queues()}
    found = list[dict[str, object]]()
    for one in standings(engine):
        state = engine.core.streams.states[one.name]
        found.append(
            {
                "stream": one.name,
                "mode": state.mode,
                "queue": names.get(state.queue),
                **{key: state.asked.get(key) for key in ("topic", "pattern", "exchange", "vhost", "filter")},
                "pipeline": state.pipeline or None,
                "orphaned": bool(state.pipeline) and not engine.pipelines.knows(state.pipeline),
                "state": "abandoned" if state.abandoned else "released" if state.released else "held",
                "epoch": state.epoch,
                "reader": engine.core.streams.readers.get(one.name),
                "floor": state.floor,
                "planned": state.planned,
                "held": _planned(state) if state.mode == "queue" else 0,
                "start": state.start,
                "position": state.position if state.mode == "log" else None,
                "holds_from": state.holds_from,
                "held_bytes": one.held_bytes,
                "lag": one.lag,
                "lag_messages": one.messages,
                "age_seconds": round(one.age, 3),
                "read_seconds": round(one.idle, 3) if one.idle >= 0 else None,
                "abandon_after_seconds": state.abandon_after / 1e6 if state.abandon_after else None,
            }
        )
    return found


def _planned(state: StreamState) -> int:
    """Messages of the queue that it holds."""
    return sum(
        pairs[i + 1] - pairs[i]
        for batch, pairs in state.plans.items()
        if batch > state.floor
        for i in range(0, len(pairs), 2)
    )
