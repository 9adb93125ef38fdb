"""What is wrong inside of settings: in filters, patterns, places, registers, actions, rights, views and certificates.

Whoever reads a file of settings cannot tell: what reads these stands above.  Each mistake has the path of its value, so
that it is told with the file, the line and the words of all others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from penstock.config.mistakes import Problem
from penstock.errors import ExpressionError, InvalidArgument, SettingsError

if TYPE_CHECKING:
    from penstock.config.foreign.converted import Path_
    from penstock.config.settings import Settings

VALUES = ("priority_expression", "group_key", "fairness_key", "last_value_key")
EXPRESSIONS = ("filter", "barrier_expression", *VALUES)
"""Settings of queues that are expressions; those of `VALUES` are worth something else than true or false."""


def mistakes_inside(settings: Settings, *, serves: bool = True) -> Iterator[Problem]:
    """All of them; without `serves` certificates apart, which are the server's, that may be on another machine."""
    yield from _in_expressions(settings)
    yield from _in_places(settings)
    yield from _in_cluster(settings)
    yield from _in_actions(settings)
    yield from _in_entitlements(settings)
    yield from _in_views(settings)
    if serves:
        yield from _in_certificates(settings)


def _expressions(settings: Settings) -> Iterator[tuple[Path_, str | None, str]]:
    """Of queues, policies and pipelines: where each stands, its text, and which setting of a queue it is."""
    for index, queue in enumerate(settings.queue):
        for key in EXPRESSIONS:
            yield ("queue", index, key), getattr(queue.settings, key), key
    for section, policies in (("policy", settings.policy), ("operator_policy", settings.operator_policy)):
        for index, policy in enumerate(policies):
            for key in EXPRESSIONS:
                text = cast("str | None", policy.policy().settings.get(key))
                yield (section, index, "definition", key.replace("_", "-")), text, key
    for index, pipeline in enumerate(settings.pipeline):
        for name, one in pipeline.source.items():
            yield ("pipeline", index, "from", name, "filter"), one.filter, ""


def _in_expressions(settings: Settings) -> Iterator[Problem]:
    from penstock.expr import compile_filter, compile_value

    for path, text, key in _expressions(settings):
        if text is None:
            continue
        try:
            compiled = compile_value(text) if key in VALUES else compile_filter(text)
            if key:
                compiled.require_deterministic(f"a queue's {key}")
        except ExpressionError as error:
            yield Problem(path, error.pointed())


def _in_places(settings: Settings) -> Iterator[Problem]:
    """Where the first runs of pipelines begin."""
    if not settings.pipeline:
        return
    from penstock.spark.options import place

    for index, pipeline in enumerate(settings.pipeline):
        places: dict[Path_, str | None] = {("from", name, "start"): one.start for name, one in pipeline.source.items()}
        if pipeline.backfill is not None:
            places["backfill", "from"] = pipeline.backfill.start
        for path, text in places.items():
            try:
                place(text or "EPOCH")
            except InvalidArgument as error:
                yield Problem(("pipeline", index, *path), str(error))


def _in_cluster(settings: Settings) -> Iterator[Problem]:
    """A register that is none."""
    if settings.cluster is None:
        return
    from penstock.server.cluster.registers import register_at

    try:
        register_at(settings.cluster.registry, settings.server.data)
    except SettingsError as error:
        yield _told((), error)


def _in_actions(settings: Settings) -> Iterator[Problem]:
    if not settings.action:
        return
    from penstock.core.action_rules import Rules

    for index, action in enumerate(settings.actions):
        try:
            Rules([action])
        except ExpressionError as error:
            yield Problem(("action", index), error.pointed())
        except InvalidArgument as error:
            yield Problem(("action", index), str(error))


def _in_entitlements(settings: Settings) -> Iterator[Problem]:
    if not settings.entitlement:
        return
    from penstock.server.people.entitlements import compiled

    for index, section in enumerate(settings.entitlement):
        try:
            compiled(section)
        except SettingsError as error:
            yield _told(("entitlement", index), error)


def _in_views(settings: Settings) -> Iterator[Problem]:
    if not settings.view:
        return
    from penstock.server.opening import unreadable

    for number, fault in unreadable(settings):
        yield Problem(("view", number), fault.pointed())


def _in_certificates(settings: Settings) -> Iterator[Problem]:
    if settings.tls.certificate is None:
        return
    from penstock.server.sockets.tls import load

    try:
        load(settings.tls)
    except SettingsError as error:
        yield _told((), error)


def _told(path: Path_, error: SettingsError) -> Problem:
    """An error that begins with the key that it is about."""
    key, _, text = str(error).partition(": ")
    return Problem((*path, *key.split(".")), text)
