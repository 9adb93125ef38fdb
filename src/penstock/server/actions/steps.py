"""The steps of an action, one after another: publish, look, count, tell, run a program.

A step that has to wait (for rows of the log, for a filter that is evaluated off the loop, for a program) keeps its
action where it is; the next action begins when this one has ended.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from penstock.core.actions.acted import OWN
from penstock.core.actions.hops import HOPS_MOST
from penstock.core.actions.leading import too_many
from penstock.core.actions.rules import (
    Deleting,
    Echoing,
    Executing,
    Extracting,
    Incrementing,
    Publishing,
    Querying,
    Rule,
)
from penstock.core.actions.templates import Happening
from penstock.errors import DiskFull, PenstockError, Refused
from penstock.expr.meter import LOOP_BODY
from penstock.records import properties as header_codec
from penstock.records.chunks import Chunk
from penstock.records.dataclass import dataclass
from penstock.records.entries import Publishes
from penstock.records.schema import GROUP_BYTES_MAX
from penstock.server.actions.executing import Programs
from penstock.server.actions.ledger import NONE
from penstock.server.actions.looking import delete, query

if TYPE_CHECKING:
    from penstock.server.actions.acts import Acts

logger = logging.getLogger("penstock.actions")

HEADER = header_codec.encode(header_codec.Properties(delivery_mode=header_codec.PERSISTENT))

EMPTY = Happening(0, "")
"""The happening of a run for several messages: what it publishes is made already, and its last step is left."""

Off: TypeAlias = "Callable[[Callable[[], str], Callable[[str], None]], None]"

ECHO_MOST = 4096
"""Characters of one line that an action writes to the server's log."""


_NAMES: Mapping[type[object], str] = {
    Deleting: "delete_sow",
    Querying: "query_sow",
    Extracting: "extract_values",
    Executing: "execute_system",
    Incrementing: "increment_counter",
    Echoing: "echo_message",
}

TOGETHER_MOST = GROUP_BYTES_MAX // 2
"""Bytes of messages that lie in one group with the record that an action is done; more come again after a crash."""


@dataclass(slots=True, eq=False)
class Run:
    """One action under way for one message."""

    rule: Rule
    step: int
    happening: Happening
    hops: int  # actions before this one
    after: int  # LSN that has to be durable before it begins
    failed: str = ""
    inline: bool = False  # it ended in the call that began it
    batch: Publishes | None = None  # that is about to be published
    count: int = 1  # messages that it is for
    chunk: Chunk = range(0)  # these messages
    cause: int = NONE  # as of its event
    begins: int = 0  # before this step only values are worked out: the others were done
    written: bool = False  # a record says that it is done
    lost: int = 1  # of these, if it failed

    @property
    def place(self) -> int:
        """The LSN of its trigger; NONE without one."""
        return self.chunk[0] if self.cause == OWN else self.cause

    @property
    def trouble(self) -> str:
        """Where it failed, in the words that metrics have."""
        step = self.rule.steps[min(self.step, len(self.rule.steps) - 1)]
        if isinstance(step, Publishing):
            return "rounds" if self.hops >= HOPS_MOST else "publish"
        return _NAMES[type(step)]

    def together(self) -> Publishes:
        """What a run for several messages publishes."""
        assert self.batch is not None
        return self.batch


class Steps:
    """Does them.  `off`, `aside`: run work off the loop; without them it runs in place."""

    def __init__(self, acts: Acts) -> None:
        self._acts = acts
        self.allow_execute = False
        self.say: Callable[[str], object] = logger.info
        self.off: Off | None = None
        self.aside: Off | None = None  # of programs, which may take a minute
        self.programs = Programs()

    def run(self, run: Run, done: Callable[[Run], None]) -> None:
        """From its step to its end; `done` is told, perhaps before this returns."""
        run.inline = True
        self._go(run, done)
        run.inline = False

    def _go(self, run: Run, done: Callable[[Run], None]) -> None:
        steps = run.rule.steps
        while run.step < len(steps):
            then = partial(self._answered, run, done)
            try:
                waits = self._do(run, then) if run.happening is not EMPTY else self._store(run, run.together(), then)
            except PenstockError as error:
                run.failed = f"{type(steps[run.step]).__name__.lower()}: {error}"
                break
            if waits:
                return
            run.step += 1
        done(run)

    def _answered(self, run: Run, done: Callable[[Run], None], failed: str = "", again: bool = False) -> None:
        """A step that waited has its answer.  `again`: it is tried once more."""
        if failed:
            run.failed = failed
            done(run)
            return
        if not again:
            run.step += 1
        self._go(run, done)
        self._acts.engine.arm()

    def _do(self, run: Run, then: Callable[..., None]) -> bool:
        """One step; whether it waits for an answer, which `then` is told."""
        step, happening = run.rule.steps[run.step], run.happening
        if run.step < run.begins and not isinstance(step, Extracting):
            return False
        match step:
            case Publishing():
                return self._publish(run, step, then)
            case Extracting():
                if self.off is not None and len(happening.data) > LOOP_BODY:
                    self.off(partial(_extract, step, happening), lambda failed: then(failed=failed))
                    return True
                step.into(happening)
            case Querying():
                query(self._acts.engine, step, happening, then)
                return True
            case Deleting():
                delete(self._acts.engine, step, happening, then)
                return True
            case Incrementing():
                name = step.counter.render(happening).decode(errors="replace")
                counters = self._acts.counts.counters
                counters[name] = counters.get(name, 0) + 1
                happening.added[step.capture] = b"%d" % counters[name]
            case Echoing():
                self.say(f"{run.rule.name}: {_line(step.message.render(happening))}")
            case Executing():
                return self._execute(step, happening, then)
        return False

    def _publish(self, run: Run, step: Publishing, then: Callable[..., None]) -> bool:
        engine, happening = self._acts.engine, run.happening
        if run.batch is None:
            name = step.topic.render(happening).decode(errors="replace")
            topic = engine.core.topic(step.step.vhost, step.step.exchange, name)
            data = step.data.render(happening)
            run.batch = Publishes(topic, HEADER, [data], size=len(HEADER) + len(data))
            if step.step.delta:
                engine.core.sow(topic.vhost, topic.exchange, topic.name)  # or it is refused
                run.batch.delta = True
        return self._store(run, run.batch, then)

    def _store(self, run: Run, batch: Publishes, then: Callable[..., None]) -> bool:
        """Publish what is made; whether that waits.  The batch stays with the run, for what was judged is on it."""
        engine = self._acts.engine
        if run.hops >= HOPS_MOST:
            raise Refused(too_many(run.hops))
        if engine.log.full:
            raise DiskFull("the log has no room")
        again = partial(then, again=True)
        if not engine.records.ready([batch], again) or not engine.judges.ready([batch], again):
            return True
        run.batch = None
        if run.step == len(run.rule.steps) - 1 and batch.size <= TOGETHER_MOST:
            with engine.core.group():
                published = engine.core.publish(engine.now(), batch)
                self._acts.ledger.write(run)
        else:
            published = engine.core.publish(engine.now(), batch)
        for lsn in published.positions:
            engine.core.hops.add(lsn, lsn + 1, run.hops + 1)
        if len(published.refused) == 1 == len(batch):
            raise published.refused[0][1]
        if published.refused:
            run.lost = len(published.refused)
            run.failed = f"publishing: {published.refused[0][1]}"
        return False

    def _execute(self, step: Executing, happening: Happening, then: Callable[..., None]) -> bool:
        if not self.allow_execute:
            raise Refused("programs are run only with server.allow_execute = true")
        work = partial(self.programs.run, [word.render(happening) for word in step.words])
        if self.aside is None:
            if failed := work():
                raise Refused(failed)
            return False
        self.aside(work, lambda failed: then(failed=failed))
        return True


def _extract(step: Extracting, happening: Happening) -> str:
    step.into(happening)
    return ""


def _line(text: bytes) -> str:
    """One line for a log: control characters shown, the rest cut."""
    told = text.decode(errors="replace")[:ECHO_MOST]
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in told)
