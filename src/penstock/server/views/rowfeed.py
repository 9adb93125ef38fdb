"""Rows of views and conflated topics as messages: published to the topic of their name where a queue shows that topic.

What changes is published, as it is known from the durable log; a row that goes is not, as nothing out of focus enters a
queue.  Rows that are there when the server starts are not published again, so what changed in the moment before a crash
may be missing.  Owns who is followed and what waits to be published; refuses to know how rows come about.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.errors import PenstockError
from penstock.expr.patterns import TopicPattern
from penstock.records import properties as header_codec
from penstock.records.entries import Publishes
from penstock.server.views.shown import Told

if TYPE_CHECKING:
    from penstock.server.engine import Engine
    from penstock.server.views.conflated import ConflatedTopic
    from penstock.server.views.live import Live
    from penstock.server.views.views import Views

logger = logging.getLogger("penstock.views")

HEADER = header_codec.encode(header_codec.Properties(content_type="application/json", delivery_mode=2))
ROWS_MOST = 500
"""Rows that are published as one batch."""


class RowFeed:
    """All methods belong to the loop's thread."""

    def __init__(self, engine: Engine, views: Views) -> None:
        self._engine, self._views = engine, views
        self._feeds: dict[tuple[str, str], _Feed] = {}

    def look(self) -> None:
        """Queues may have come or gone: follow whatever some queue shows, and nothing else."""
        for shown in self._views.all_shown():
            key = (shown.vhost, shown.name)
            feed = self._feeds.get(key)
            wanted = self._engine.core.keeps(shown.vhost, "", shown.name) and not self._feeds_itself(shown)
            if feed is not None and (feed.shown is not shown or not wanted):
                feed.end()
                del self._feeds[key]
                feed = None
            if feed is None and wanted:
                self._feeds[key] = _Feed(self._engine, shown)

    def _feeds_itself(self, shown: Live | ConflatedTopic) -> bool:
        """Whether what is published would change the view anew, for ever."""
        vhost, seen, waiting = shown.vhost, set[str](), list(sources_of(shown))
        while waiting:
            source = waiting.pop()
            if source == shown.name:
                logger.warning("rows of %r are not published: a queue over them is among its sources", source)
                return True
            if source in seen:
                continue
            seen.add(source)
            above = self._views.shown(vhost, source)
            if above is not None:
                waiting += sources_of(above)
                continue
            try:
                settings = self._engine.core.queue(vhost, source).settings
            except PenstockError:
                continue  # a topic, or another connection's own queue
            pattern = TopicPattern(settings.underlying_topic or source)
            waiting += [one.name for one in self._views.all_shown() if one.vhost == vhost and pattern.matches(one.name)]
        return False


def sources_of(shown: Live | ConflatedTopic) -> Sequence[str]:
    """The names that a view or conflated topic gathers from."""
    from penstock.server.views.conflated import ConflatedTopic  # it follows records, which follow replays

    if isinstance(shown, ConflatedTopic) or not shown.sides:
        return [shown.definition.source]
    return [side.definition.source for side in shown.sides]


class _Feed:
    """One view."""

    def __init__(self, engine: Engine, shown: Live | ConflatedTopic) -> None:
        self.shown = shown
        self._engine = engine
        self._rows: list[bytes] = []
        self._armed = self._ended = False
        shown.when_current(self._begin)

    def end(self) -> None:
        """Follow no more."""
        self._ended = True
        if self._tell in self.shown.told:
            self.shown.told.remove(self._tell)

    def _begin(self) -> None:
        if not self._ended:
            self.shown.told.append(self._tell)

    def _tell(self, told: Sequence[Told]) -> None:
        self._rows += [row.body for row in told if row.body is not None and row.body != row.before]
        self._arm()

    def _arm(self) -> None:
        if self._rows and not self._armed:
            self._armed = True
            self._engine.call_soon(self._publish)

    def _publish(self) -> None:
        self._armed = False
        engine = self._engine
        if not self._rows or engine.broken is not None:
            return
        if engine.log.full:
            logger.warning("%d rows of %r are not published: the log has no room", len(self._rows), self.shown.name)
            self._rows.clear()
            return
        bodies = self._rows[:ROWS_MOST]
        topic = engine.core.topic(self.shown.vhost, "", self.shown.name)
        size = len(HEADER) * len(bodies) + sum(map(len, bodies))
        batch = Publishes(topic, HEADER, bodies, size=size)
        if not engine.records.ready([batch], self._arm) or not engine.judges.ready([batch], self._arm):
            return
        del self._rows[: len(bodies)]
        refused = engine.core.publish(engine.now(), batch).refused
        if refused:
            logger.warning("%d rows of %r are refused: %s", len(refused), self.shown.name, refused[0][1])
        engine.arm()
        self._arm()
