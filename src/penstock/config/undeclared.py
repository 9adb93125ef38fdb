"""Names that settings use and do not declare: a client may declare them, or they are misspelt.  None is a mistake."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from penstock.config.vhost_sections import joins_of
from penstock.errors import known_name
from penstock.records.regular_expressions import SPECIAL, topic_pattern

if TYPE_CHECKING:
    from penstock.config.pipeline_section import Pipeline
    from penstock.config.settings import Settings


def of_views(settings: Settings) -> Iterator[str]:
    """Sentences about views whose source nobody declares."""
    some = [("view", one) for one in settings.view] + [("conflated_topic", one) for one in settings.conflated_topic]
    known = {(one.vhost, one.name): None for _, one in some} | {(one.vhost, one.name): None for one in settings.queue}
    known |= {(one.vhost, one.name): None for one in settings.topics if one.key or one.key_from}
    for section, one in some:
        for name in [*([one.source] if one.source else []), *sorted(joins_of(one))]:
            if (one.vhost, name) not in known:
                near = known_name(name, [other for vhost, other in known if vhost == one.vhost])
                yield (
                    f"[[{section}]] {one.name!r} is empty until a client declares its source {name!r}, "
                    f"which these settings do not{near}"
                )


def of_pipeline(pipeline: Pipeline, settings: Settings, file: str) -> list[str]:
    """Sentences about queues and topics that a pipeline names and the settings do not have."""
    queues = [one.name for one in settings.queue]
    named = [*(one.queue for one in pipeline.source.values()), *(one.queue for one in pipeline.to)]
    asked = [name for name in named if name is not None]
    told = [
        f"{file} has no [[queue]] {name!r}{known_name(name, queues)}: without it a client must declare it first"
        for name in dict.fromkeys(asked)
        if name not in queues
    ]
    kept = dict.fromkeys(_kept(settings))
    for one in pipeline.source.values():
        if one.topic is None or one.exchange or not SPECIAL.isdisjoint(one.topic):
            continue
        if not any(shows(one.topic) for shows in _shown(kept)):
            near = known_name(one.topic, list(kept))
            told.append(f"{file} has no [[topic]] {one.topic!r}{near}: what no queue shows and nobody declares is lost")
    return told


def _kept(settings: Settings) -> Iterator[str]:
    """Topics of the default exchange that something of the settings keeps."""
    yield from (one.name for one in settings.topic if not one.exchange)
    yield from (one.settings.underlying_topic or one.name for one in settings.queue if not one.settings.exchange)
    for pipeline in settings.pipeline:
        yield from (name for to in pipeline.to for name in (to.topic, to.view) if name and not to.exchange)
        yield from (rule.topic for rule in pipeline.rules if rule.topic)


def _shown(topics: Iterable[str]) -> Iterator[Callable[[str], bool]]:
    for topic in topics:
        try:
            yield topic_pattern(topic)
        except ValueError:  # told where it stands
            continue
