"""What one connection may publish and consume, where entitlements are configured.

A run of publishes is looked at before anything of it is stored: rows up to the first that is not allowed go in, then
the channel closes with 403.  Extra routing keys (CC, BCC) are asked about like the first.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from penstock.core.effects import Question
from penstock.core.publishing.published import read_traits
from penstock.errors import AccessRefused
from penstock.expr import Filter
from penstock.expr.bodies import heavy
from penstock.records.entries import Publishes, Topic
from penstock.records.remembered import Remembered
from penstock.server.people.entitlements import Need, Rights, narrowed
from penstock.wire.amqp import events, methods

if TYPE_CHECKING:
    from penstock.records.queue_settings import QueueSettings
    from penstock.server.amqp.channel import Channel
    from penstock.server.amqp.session import Session

Way = tuple[str, str, tuple[str, ...]]
"""Exchange, routing key, and what CC and BCC add."""

REMEMBERED = 10_000


Judged = dict[str, dict[int, int]]
"""What content filters are known to say of rows: by text of the filter."""


class _Refused(NamedTuple):
    """The first row that may not go where it is sent, and why."""

    row: int
    why: AccessRefused


class Taker(Protocol):
    """Who publishes what may go in."""

    def take(self, channel: Channel, run: events.PublishRun, judged: Judged | None = None) -> None:
        """Publish a run."""

    def topic_of(self, target: events.Target) -> Topic:
        """The topic of a method frame.  Raises NotFound, AccessRefused."""
        ...


class Entitled:
    """Judges the publishes of one session."""

    def __init__(self, session: Session, rights: Rights, intake: Taker) -> None:
        self._session = session
        self._intake = intake
        self._rights = rights
        self._known = Remembered[Way, "tuple[Filter, ...]"](REMEMBERED)
        self._version = -1

    def allows(self, channel: Channel, run: events.PublishRun, judged: Judged | None) -> bool:
        """Whether all of a run may go in.  If not, what may has been taken, or the run waits for its filters."""
        filters, error = self._filters_of(run)
        bad = len(run.bodies) if error is None else error.row
        for one, rows in filters.items():
            known = {} if judged is None else judged.get(one.text, {})
            asked = [row for row in rows if row not in known]
            if heavy(one.message_type, [len(run.bodies[row]) for row in asked]):
                self._ask(channel, run, one, asked, judged)
                return False
            found = one.matches([run.bodies[row] for row in asked], [run.properties_of(row) for row in asked])
            answers = {**known, **dict(zip(asked, found, strict=True))}
            wrong = next((row for row in rows if not answers[row]), bad)
            if wrong < bad:
                bad, error = wrong, _Refused(wrong, self._not_of(run, wrong))
        if error is None:
            return True
        self._refuse(channel, run, bad, error.why, judged)
        return False

    def _filters_of(self, run: events.PublishRun) -> tuple[dict[Filter, list[int]], _Refused | None]:
        """What filters the rows have to match, by filter, up to the first row that may not go where it is sent."""
        filters: dict[Filter, list[int]] = {}
        alike = not isinstance(run.targets, list) and isinstance(run.properties, bytes)
        for row in range(len(run.bodies)):
            try:
                chosen = self._of(run, row)
            except AccessRefused as refusal:
                return filters, _Refused(row, refusal)
            if alike and not chosen:
                return {}, None
            for one in chosen:
                filters.setdefault(one, []).append(row)
        return filters, None

    def _not_of(self, run: events.PublishRun, row: int) -> AccessRefused:
        """Why a row that does not match may not go in."""
        key, vhost, user = run.target_of(row).key, self._session.vhost, self._rights.user
        return AccessRefused(f"this message to '{key}' in vhost '{vhost}' is not one that user '{user}' may write")

    def _of(self, run: events.PublishRun, row: int) -> tuple[Filter, ...]:
        """What a row has to match.  Raises AccessRefused."""
        target, data = run.target_of(row), run.properties_of(row)
        keys = read_traits(data).keys if b"CC" in data else ()
        core = self._session.core
        if self._version != core.topology_version:
            self._known.clear()
            self._version = core.topology_version
        way = target.exchange, target.key, keys
        found = self._known.get(way)
        if found is None:
            vhost = self._session.vhost
            rights = [self._rights.publish(core, vhost, target.exchange, key) for key in (target.key, *keys)]
            found = self._known.keep(way, tuple(dict.fromkeys(one for one in rights if one is not None)))
        return found

    def _ask(
        self, channel: Channel, run: events.PublishRun, one: Filter, rows: list[int], judged: Judged | None
    ) -> None:
        """Evaluate off the loop; the connection waits meanwhile."""
        session = self._session
        batch = Publishes([], run.properties, run.bodies, judged=judged)
        batch.topics = [self._intake.topic_of(run.target_of(row)) for row in range(len(run.bodies))]
        session.incoming.hold()

        def then() -> None:
            session.incoming.go_on(partial(self._intake.take, channel, run, batch.judged))

        session.engine.judges.evaluate(batch, [Question(one, rows)], then)

    def _refuse(
        self, channel: Channel, run: events.PublishRun, bad: int, error: AccessRefused, judged: Judged | None
    ) -> None:
        intake = self._intake
        if bad:
            intake.take(channel, run.part(0, bad), judged or {})  # at once, for the channel is closed behind them
        self._session.fail_channel(run.channel, error, methods.BasicPublish)


def consuming(session: Session, name: str, text: str | None) -> Filter | None:
    """The filter of a queue's consumer, narrowed to what its user may read.  Raises AccessRefused, ExpressionError."""
    right = None if session.rights is None else session.rights.read_queue(session.vhost, name)
    return narrowed(text, right)


def may_find(session: Session, thing: str, name: str) -> None:
    """AccessRefused unless the user may ask whether it is there: before it is looked for."""
    if session.rights is not None:
        session.rights.find(session.vhost, thing, name)


def may_declare(session: Session, name: str, settings: QueueSettings) -> None:
    """AccessRefused unless the user may declare this queue, or find it."""
    if session.rights is not None:
        present = session.core.find_queue(session.vhost, name)
        session.rights.declare(session.vhost, name, settings, present)


def may_configure(session: Session, what: str, *needs: Need) -> None:
    """AccessRefused unless the user may change the topology so."""
    if session.rights is not None:
        session.rights.configure(what, session.vhost, needs)


def may_bind(session: Session, source: str, key: str) -> None:
    """AccessRefused unless the user may bind to this exchange, or unbind, with this key."""
    if session.rights is not None:
        session.rights.binds(session.core, session.vhost, source, key)


def may_purge(session: Session, name: str) -> None:
    """AccessRefused unless the user may read, and so acknowledge, all of a queue."""
    if session.rights is not None:
        session.rights.read_all_of_queue(session.vhost, name, "purging")
