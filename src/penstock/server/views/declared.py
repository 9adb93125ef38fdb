"""Views and conflated topics as the settings file has them, given to the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import ExpressionError, SettingsError
from penstock.expr.gathering.view_definition import Definition, plan

if TYPE_CHECKING:
    from penstock.config.settings import Settings
    from penstock.config.vhost_sections import ConflatedSection, ViewSection
    from penstock.server.views.conflated import ConflatedDefinition
    from penstock.server.views.views import Views


def definition_of(section: ViewSection) -> Definition:
    """The definition that a `[[view]]` is."""
    return Definition(
        name=section.name,
        source=section.source or "",
        select=section.select,
        group_by=section.group_by,
        filter=section.filter,
        vhost=section.vhost,
        conflation=section.conflation,
        join=section.join,
        null_equivalency=section.join_null_equivalency,
    )


def conflated_of(section: ConflatedSection) -> ConflatedDefinition:
    """The definition that a `[[conflated_topic]]` is."""
    from penstock.server.views.conflated import ConflatedDefinition

    return ConflatedDefinition(
        name=section.name,
        source=section.source,
        interval=section.interval,
        filter=section.filter,
        vhost=section.vhost,
    )


def declare(views: Views, settings: Settings) -> None:
    """All views, then all conflated topics, in the order of the file.  SettingsError names one that cannot be read."""
    for view in settings.view:
        try:
            if view.engine == "spark":
                plan(definition_of(view))  # a topic with a key, whose rows Spark writes
                continue
            views.add(definition_of(view))
        except ExpressionError as error:
            raise SettingsError(f'[[view]] "{view.name}": {error.pointed()}') from error
    for topic in settings.conflated_topic:
        try:
            views.add_conflated(conflated_of(topic))
        except ExpressionError as error:
            raise SettingsError(f'[[conflated_topic]] "{topic.name}" filter: {error.pointed()}') from error
    views.rows_published.look()


def unreadable(settings: Settings) -> list[tuple[str, ExpressionError]]:
    """Views whose expressions cannot be used, by their place in the settings: for who checks without starting."""
    found: list[tuple[str, ExpressionError]] = []
    for number, view in enumerate(settings.view):
        try:
            plan(definition_of(view))
        except ExpressionError as error:
            found.append((f"view.{number}", error))
    return found
