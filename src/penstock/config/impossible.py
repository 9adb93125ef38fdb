"""What sound sections say together and cannot be: names given twice, vhosts that nobody declared, wrong references."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.config.actions import wrong_actions
from penstock.config.hints import known_name
from penstock.config.pipeline_inputs import ONLY
from penstock.config.pipeline_names import shared_names
from penstock.config.places import Path_
from penstock.config.settings import Settings
from penstock.config.telling import Problem
from penstock.config.tls import DOORS
from penstock.config.views import wrong_views


def impossible(settings: Settings) -> list[Problem]:
    """All that the sections say of each other and that cannot be, each with its place."""
    problems: list[Problem] = []
    named: dict[str, list[tuple[str, str]]] = {
        "user": [("", one.name) for one in settings.user],
        "vhost": [("", one.name) for one in settings.vhost],
        "exchange": [(one.vhost, one.name) for one in settings.exchange],
        "topic": [(one.vhost, f"{one.exchange}/{one.name}") for one in settings.topic],
        "queue": [(one.vhost, one.name) for one in settings.queue],
        "pipeline": [("", one.name) for one in settings.pipeline],
        "permission": [(one.vhost, one.user) for one in settings.permission],
        "topic_permission": [(one.vhost, f"{one.user}, {one.exchange}") for one in settings.topic_permission],
        "policy": [(one.vhost, one.name) for one in settings.policy],
        "operator_policy": [(one.vhost, one.name) for one in settings.operator_policy],
        "view": [(one.vhost, one.name) for one in settings.view],
        "conflated_topic": [(one.vhost, one.name) for one in settings.conflated_topic],
    }
    for section, names in named.items():
        for index, name in enumerate(names):
            if name in names[:index]:
                problems.append(Problem((section, index, "name"), f"{name[1]!r} is there twice"))
    placed: list[tuple[Path_, str]] = [
        *((("exchange", index), one.vhost) for index, one in enumerate(settings.exchange)),
        *((("topic", index), one.vhost) for index, one in enumerate(settings.topic)),
        *((("queue", index), one.vhost) for index, one in enumerate(settings.queue)),
        *((("binding", index), one.vhost) for index, one in enumerate(settings.binding)),
        *(
            (("action", index, "on", place), on.vhost)
            for index, one in enumerate(settings.action)
            for place, on in enumerate(one.on)
        ),
        *((("entitlement", index), one.vhost) for index, one in enumerate(settings.entitlement)),
        *((("view", index), one.vhost) for index, one in enumerate(settings.view)),
        *((("conflated_topic", index), one.vhost) for index, one in enumerate(settings.conflated_topic)),
        *_places_of_pipelines(settings),
    ]
    for section, vhosts in (
        ("permission", [one.vhost for one in settings.permission]),
        ("policy", [one.vhost for one in settings.policy]),
        ("operator_policy", [one.vhost for one in settings.operator_policy]),
        ("address", [one.vhost for one in settings.address]),
    ):
        placed += (((section, index), vhost) for index, vhost in enumerate(vhosts))
    people = [one.name for one in settings.users]
    problems += [
        Problem(("permission", index, "user"), f"there is no [[user]] {one.user!r}{known_name(one.user, people)}")
        for index, one in enumerate(settings.permission)
        if one.user not in people
    ]
    permitted = {(one.user, one.vhost) for one in settings.permission}
    problems += [
        Problem(
            ("topic_permission", index, "user"),
            f"there is no [[permission]] of {one.user!r} in vhost {one.vhost!r}, which this would narrow",
        )
        for index, one in enumerate(settings.topic_permission)
        if (one.user, one.vhost) not in permitted
    ]
    patterns = [one.setting().key for one in settings.address]
    problems += [
        Problem(("address", index, "pattern"), f"{key[1]!r} is there twice")
        for index, key in enumerate(patterns)
        if key in patterns[:index]
    ]
    for path, vhost in placed:
        if vhost not in settings.vhosts:
            hint = known_name(vhost, list(settings.vhosts))
            problems.append(Problem((*path, "vhost"), f"there is no [[vhost]] {vhost!r}{hint}"))
    problems += [
        Problem(("action", *wrong.path), wrong.why)
        for wrong in wrong_actions(settings.action, allow_execute=settings.server.allow_execute)
    ]
    problems += [
        Problem((one.section, one.place, one.key), one.why)
        for one in wrong_views(settings.view, settings.conflated_topic, named["queue"])
    ]
    keyed = {(one.vhost, one.name) for one in settings.topic if one.key or one.key_from} - set(named["queue"])
    problems += [
        Problem(("view", index, "source"), f"{one.source!r} is a topic, and engine 'spark' computes views of queues")
        for index, one in enumerate(settings.view)
        if one.engine == "spark" and (one.vhost, one.source) in keyed
    ]
    problems += _views_of_pipelines(settings)
    problems += _doors_without_certificate(settings)
    problems += [
        Problem(("pipeline", index, "name"), why) for index, why in shared_names(settings.pipeline, settings.view)
    ]
    return problems


def _doors_without_certificate(settings: Settings) -> Iterator[Problem]:
    """Doors with TLS that have none, and what such a door cannot do."""
    listen, tls = settings.listen, settings.tls
    for name in DOORS:
        if getattr(listen, name) is not None and tls.certificate is None:
            yield Problem(("listen", name), "needs the certificate and key of [tls]")
    if listen.flight_tls is not None and tls.min_version != "1.2":
        why = f"{tls.min_version!r} does not go with listen.flight_tls: gRPC's TLS begins with 1.2 and cannot be told"
        yield Problem(("tls", "min_version"), why)


def _places_of_pipelines(settings: Settings) -> Iterator[tuple[Path_, str]]:
    """Everything of pipelines that is in a vhost, and in which."""
    for index, one in enumerate(settings.pipeline):
        for name, source in one.source.items():
            yield ("pipeline", index, "from", *([] if name == ONLY else [name])), source.vhost
        for place, to in enumerate(one.to):
            yield ("pipeline", index, "to", place), to.vhost


def _views_of_pipelines(settings: Settings) -> list[Problem]:
    """Outputs that keep the last row of each key: their topics, and who else says what the key is."""
    problems: list[Problem] = []
    keys = {(one.vhost, one.exchange, one.name): one.key for one in settings.topic}
    computed = {(one.vhost, one.name) for one in settings.view}
    for index, pipeline in enumerate(settings.pipeline):
        for place, to in enumerate(pipeline.to):
            if to.view is None:
                continue
            path, topic = ("pipeline", index, "to", place), (to.vhost, to.exchange, to.view)
            known = keys.get(topic)
            if (to.vhost, to.view) in computed:
                problems.append(Problem((*path, "view"), f"[[view]] {to.view!r} is computed by the server itself"))
            elif not to.keys and not known:
                problems.append(Problem((*path, "view"), "needs a key, here or in a [[topic]], as in key = ['id']"))
            elif to.keys and known is not None and known != to.keys:
                elsewhere = f"elsewhere {', '.join(known)}" if known else f"[[topic]] {to.view!r} has no key"
                problems.append(Problem((*path, "key"), f"is {', '.join(to.keys)}, and {elsewhere}"))
            elif to.keys:
                keys[topic] = to.keys
    return problems
