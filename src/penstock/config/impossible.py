"""What sections of the settings say of each other and that cannot be: names that are there twice, things in vhosts that
nobody declared, what does not go together.

Each check looks at a section once, however long it is: files are made by programs, too.

Names that settings use and do not declare are no mistake: a client may declare them, or they are misspelt, which people
are told.

Pipelines and views on Spark share names of streams on the server and of files beside checkpoints.  A pipeline `p` over
several inputs has the streams `p.a`, `p.b`; its backfills are `p.backfill.<id>`, and beside its checkpoint `p` lie
`p.json`, `p.lock` and others.  A pipeline that is called so itself would share them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from os.path import join, normpath, relpath
from typing import NamedTuple, TypeVar

from penstock.config.action_section import wrong_steps
from penstock.config.foreign.converted import Path_
from penstock.config.mistakes import Problem
from penstock.config.pipeline_inputs import ONLY, Expectation
from penstock.config.pipeline_section import Pipeline
from penstock.config.queue_arguments import idle_arguments
from penstock.config.sections import DOORS, EVERYWHERE
from penstock.config.settings import Settings
from penstock.config.vhost_sections import ConflatedSection, ViewSection
from penstock.errors import known_name
from penstock.records.regular_expressions import SPECIAL, topic_pattern

T = TypeVar("T")


def impossible(settings: Settings) -> list[Problem]:
    """All that the sections say of each other and that cannot be, each with its place."""
    return [problem for check in CHECKS for problem in check(settings)]


def _names(settings: Settings) -> dict[str, list[tuple[str, str]]]:
    """Of every section whose members have names: (vhost, name) of each, with no vhost where names are for all."""
    return {
        "user": [("", one.name) for one in settings.user],
        "vhost": [("", one.name) for one in settings.vhost],
        "exchange": [(one.vhost, one.name) for one in settings.exchange],
        "topic": [(one.vhost, f"{one.exchange}/{one.name}") for one in settings.topic],
        "queue": [(one.vhost, one.name) for one in settings.queue],
        "pipeline": [("", one.name) for one in settings.pipeline],
        "link": [("", one.name) for one in settings.link],
        "permission": [(one.vhost, one.user) for one in settings.permission],
        "topic_permission": [(one.vhost, f"{one.user}, {one.exchange}") for one in settings.topic_permission],
        "policy": [(one.vhost, one.name) for one in settings.policy],
        "operator_policy": [(one.vhost, one.name) for one in settings.operator_policy],
        "view": [(one.vhost, one.name) for one in settings.view],
        "conflated_topic": [(one.vhost, one.name) for one in settings.conflated_topic],
    }


def _twice(settings: Settings) -> Iterator[Problem]:
    """What has the name of another."""
    for section, names in _names(settings).items():
        for index, name in _again(names):
            yield Problem((section, index, "name"), f"{name[1]!r} is there twice")
    for index, key in _again([one.setting().key for one in settings.address]):
        yield Problem(("address", index, "pattern"), f"{key[1]!r} is there twice")


def _again(names: Iterable[T]) -> Iterator[tuple[int, T]]:
    """Those that have been before, and their places."""
    seen = set[T]()
    for index, name in enumerate(names):
        if name in seen:
            yield index, name
        seen.add(name)


IN_A_VHOST = (
    "exchange", "topic", "queue", "binding", "entitlement", "view", "conflated_topic", "permission", "policy",
    "operator_policy", "address",
)  # fmt: skip
"""Sections whose members name the vhost they are in."""


def _unknown_vhosts(settings: Settings) -> Iterator[Problem]:
    """Everything that is in a vhost which nobody declared."""
    placed: list[tuple[Path_, str]] = [
        ((section, index), one.vhost) for section in IN_A_VHOST for index, one in enumerate(getattr(settings, section))
    ]
    for index, action in enumerate(settings.action):
        placed += ((("action", index, "on", place), on.vhost) for place, on in enumerate(action.on))
    for index, link in enumerate(settings.link):
        placed += ((("link", index, "topic", place), one.vhost) for place, one in enumerate(link.topic))
    vhosts = dict.fromkeys(settings.vhosts)
    for path, vhost in (*placed, *_places_of_pipelines(settings)):
        if vhost not in vhosts:
            yield Problem((*path, "vhost"), f"there is no [[vhost]] {vhost!r}", (vhost, vhosts))


def _unknown_people(settings: Settings) -> Iterator[Problem]:
    """Permissions of who is not there, or of what would narrow none."""
    people = dict.fromkeys(one.name for one in settings.users)
    for index, permission in enumerate(settings.permission):
        if (user := permission.user) not in people:
            yield Problem(("permission", index, "user"), f"there is no [[user]] {user!r}", (user, people))
    permitted = {(one.user, one.vhost) for one in settings.permission}
    for index, one in enumerate(settings.topic_permission):
        if (one.user, one.vhost) not in permitted:
            why = f"there is no [[permission]] of {one.user!r} in vhost {one.vhost!r}, which this would narrow"
            yield Problem(("topic_permission", index, "user"), why)


def _actions(settings: Settings) -> Iterator[Problem]:
    """What cannot be of actions that can be read."""
    for index, action in enumerate(settings.action):
        for path, why in wrong_steps(action, index + 1, allow_execute=settings.server.allow_execute):
            yield Problem(("action", index, "do", *path), why)


def _views(settings: Settings) -> Iterator[Problem]:
    """Views and conflated topics that come before what they read, or are called as something else is."""
    queues = _names(settings)["queue"]
    taken = dict.fromkeys(queues, "queue")
    sections: tuple[tuple[str, Sequence[ViewSection | ConflatedSection]], ...] = (
        ("view", settings.view),
        ("conflated_topic", settings.conflated_topic),
    )
    for section, some in sections:
        names = _Places.of((one.vhost, one.name) for one in some)
        for place, one in enumerate(some):
            name = (one.vhost, one.name)
            if name in taken and not names.before(name, place):
                yield Problem((section, place, "name"), f"{one.name!r} is a {taken[name]} already")
            for key, why in _misplaced(one, names, place, taken):
                yield Problem((section, place, key), why)
        taken |= dict.fromkeys(names.first, section.replace("_", " "))
    keyed = {(one.vhost, one.name) for one in settings.topic if one.key or one.key_from} - set(queues)
    for index, one in enumerate(settings.view):
        if one.engine == "spark" and (one.vhost, one.source) in keyed:
            why = f"{one.source!r} is a topic, and engine 'spark' computes views of queues"
            yield Problem(("view", index, "source"), why)


class _Places(NamedTuple):
    """Where each name stands in a list, (vhost, name): at first and at last."""

    first: Mapping[tuple[str, str], int]
    last: Mapping[tuple[str, str], int]

    @staticmethod
    def of(names: Iterable[tuple[str, str]]) -> _Places:
        """By a list of names."""
        listed = list(enumerate(names))
        return _Places({name: at for at, name in reversed(listed)}, {name: at for at, name in listed})

    def before(self, name: tuple[str, str], place: int) -> bool:
        """Whether it is there before this place."""
        return self.first.get(name, place) < place

    def from_on(self, name: tuple[str, str], place: int) -> bool:
        """Whether it is there, or anywhere after."""
        return self.last.get(name, -1) >= place


def _misplaced(
    one: ViewSection | ConflatedSection,
    names: _Places,
    place: int,
    taken: Mapping[tuple[str, str], str],
) -> Iterator[tuple[str, str]]:
    """The key to blame, and why: what a view reads comes before it.  names: of its kind, of which it is at `place`."""
    name, source = (one.vhost, one.name), (one.vhost, one.source or "")
    for joined in _joins_of(one):
        if names.from_on((one.vhost, joined), place):
            yield "join", f"{joined!r} is this view or one after it; it must come first"
    if isinstance(one, ViewSection) and one.engine == "spark" and names.before(source, place):
        yield "source", f"{one.source!r} is a view, and engine 'spark' computes views of queues"
    if source == name:
        yield "source", f"{one.name!r} cannot be its own source"
    elif names.from_on(source, place):
        yield "source", f"{one.source!r} is defined after this one; it must come first"
    elif isinstance(one, ConflatedSection) and taken.get(source) == "queue":
        yield "source", f"{one.source!r} is a queue, and nothing of it is conflated"


def _joins_of(one: ViewSection | ConflatedSection) -> set[str]:
    """The topics that a view joins, as far as they can be told without reading expressions."""
    joins = one.join if isinstance(one, ViewSection) else ()
    return {name for text in joins for name in re.findall(r"\[([^\]]+)\]\s*\.\s*[/\[]", text)}


def _pipelines(settings: Settings) -> Iterator[Problem]:
    for index, why in shared_names(settings.pipeline, settings.view):
        yield Problem(("pipeline", index, "name"), why)
    for index, pipeline in enumerate(settings.pipeline):
        for rule in _read_again(pipeline, settings):
            why = f"rule {rule.name!r}: its topic {rule.topic!r} is read by the pipeline, so a row would come for ever"
            yield Problem(("pipeline", index, "expect"), why)


def _read_again(pipeline: Pipeline, settings: Settings) -> Iterator[Expectation]:
    """Rules whose dead letters come back to the input that they are about."""
    queues = {(one.vhost, one.name): one.settings for one in settings.queue}
    for name, one in pipeline.source.items():
        topic, exchange = one.topic, one.exchange
        if one.queue is not None:
            found = queues.get((one.vhost, one.queue))
            topic, exchange = (found and found.underlying_topic) or one.queue, found.exchange if found else ""
        rules = (*one.expect, *(pipeline.expect if name in pipeline.streams[:1] else ()))
        if topic is not None and not exchange:
            yield from (rule for rule in rules if rule.topic is not None and _shows(topic, rule.topic))


def _shows(topic: str, key: str) -> bool:
    try:
        return topic_pattern(topic)(key)
    except ValueError:  # told where it stands
        return False


def _doors_without_certificate(settings: Settings) -> Iterator[Problem]:
    """Doors with TLS that have none, and what such a door cannot do."""
    listen, tls = settings.listen, settings.tls
    for name in DOORS:
        if getattr(listen, name) is not None and tls.certificate is None:
            yield Problem(("listen", name), "needs the certificate and key of [tls]")
    if listen.flight_tls is not None and tls.min_version != "1.2":
        why = f"{tls.min_version!r} does not go with listen.flight_tls: gRPC's TLS begins with 1.2 and cannot be told"
        yield Problem(("tls", "min_version"), why)


def _no_door(settings: Settings) -> Iterator[Problem]:
    """A server that nobody could speak to, nor stop but by a signal."""
    if not settings.listen.doors():
        doors = ", ".join(type(settings.listen).model_fields)
        yield Problem(("listen",), f"every door is off: give one of {doors} an address")


def _places_of_pipelines(settings: Settings) -> Iterator[tuple[Path_, str]]:
    """Everything of pipelines that is in a vhost, and in which."""
    for index, one in enumerate(settings.pipeline):
        for name, source in one.source.items():
            yield ("pipeline", index, "from", *([] if name == ONLY else [name])), source.vhost
        for place, to in enumerate(one.to):
            yield ("pipeline", index, "to", place), to.vhost


def _views_of_pipelines(settings: Settings) -> Iterator[Problem]:
    """Outputs that keep the last row of each key: their topics, and who else says what the key is."""
    keys = {(one.vhost, one.exchange, one.name): one.key for one in settings.topic}
    computed = {(one.vhost, one.name) for one in settings.view}
    for index, pipeline in enumerate(settings.pipeline):
        for place, to in enumerate(pipeline.to):
            if to.view is None:
                continue
            path, topic = ("pipeline", index, "to", place), (to.vhost, to.exchange, to.view)
            known = keys.get(topic)
            if (to.vhost, to.view) in computed:
                yield Problem((*path, "view"), f"[[view]] {to.view!r} is computed by the server itself")
            elif not to.keys and not known:
                yield Problem((*path, "view"), "needs a key, here or in a [[topic]], as in key = ['id']")
            elif to.keys and known is not None and known != to.keys:
                elsewhere = f"elsewhere {', '.join(known)}" if known else f"[[topic]] {to.view!r} has no key"
                yield Problem((*path, "key"), f"is {', '.join(to.keys)}, and {elsewhere}")
            elif to.keys:
                keys[topic] = to.keys


def _in_a_cluster(settings: Settings) -> Iterator[Problem]:
    """What a server cannot do that keeps its log together with others."""
    if settings.cluster is None:
        return
    if settings.server.sync != "commit":
        why = f"{settings.server.sync!r} does not go with [cluster]: a follower's word is that its disk has it"
        yield Problem(("server", "sync"), why)
    archive = settings.log.archive
    if settings.link and settings.cluster.name is None:
        yield Problem(("cluster", "name"), "is missing: a [[link]] ends at a site, which is the whole cluster")
    if archive is not None and not (archive.shared and archive.folder.startswith("/")):
        why = "with [cluster] whoever leads next goes on with it: name a folder that all members see, and shared = true"
        yield Problem(("log", "archive"), why)
    mine = settings.cluster.listen
    for name, door in settings.listen.doors().items():  # a member that follows does not open these: it would not notice
        same = mine is not None and (mine.host == door.host or not EVERYWHERE.isdisjoint({mine.host, door.host}))
        if mine is not None and same and mine.port == door.port != 0:
            yield Problem(("cluster", "listen"), f"{mine} cannot be taken: listen.{name} is {door}")


def _arguments(settings: Settings) -> Iterator[Problem]:
    """AMQP arguments of queues that would ask for something, and have no effect."""
    for index, queue in enumerate(settings.queue):
        for argument, why in idle_arguments(queue.name, queue.arguments, queue.given):
            yield Problem(("queue", index, "arguments", argument), why)


OWN = ("checkpoints", "cut", "cutting", "index", "log", "paged", "spark", "sql.tmp", "stage")
"""Folders that the server makes in its data folder."""


def _archive(settings: Settings) -> Iterator[Problem]:
    """An archive among the server's own files."""
    archive = settings.log.archive
    if archive is None:
        return
    inside = relpath(normpath(join(settings.server.data, archive.folder)), normpath(settings.server.data))
    first = inside.partition("/")[0]
    if first == "." or first in OWN:
        own = "the data folder itself" if first == "." else f"in {first!r}, a folder of the server's own"
        why = f"{archive.folder!r} is {own}: name a folder for the archive alone"
        yield Problem(("log", "archive", "folder"), why)


def _links(settings: Settings) -> Iterator[Problem]:
    """Links to oneself, and the names of local queues as topics of links."""
    local = {(one.vhost, "", one.name) for one in settings.queue if one.settings.kind == "local"}
    for index, link in enumerate(settings.link):
        if link.name == settings.site:
            where = "server.name" if settings.cluster is None else "cluster.name"
            yield Problem(("link", index, "name"), f"{link.name!r} is this site's own name, in {where}")
        for place, topic in enumerate(link.topic):
            if (topic.vhost, topic.exchange, topic.pattern) in local:
                why = f"{topic.pattern!r} is the name of a local queue, of which each site has its own"
                yield Problem(("link", index, "topic", place, "pattern"), why)


CHECKS: tuple[Callable[[Settings], Iterable[Problem]], ...] = (
    _twice, _unknown_people, _unknown_vhosts, _actions, _views, _views_of_pipelines, _doors_without_certificate,
    _no_door, _pipelines, _in_a_cluster, _archive, _arguments, _links,
)  # fmt: skip


FILES = ("json", "lock", "anew", "places", "handover", "forgotten", "part")
"""What is kept beside a checkpoint, as `<name>.<ending>`."""


def streams_of(pipeline: Pipeline) -> tuple[str, ...]:
    """The names under which the server knows what a pipeline reads, as `Definition.stream_of` has them."""
    if list(pipeline.source) == [ONLY]:
        return (pipeline.name,)
    return tuple(f"{pipeline.name}.{name}" for name, one in pipeline.source.items() if one.is_stream)


def _taken(pipelines: Sequence[Pipeline]) -> dict[str, str]:
    """Names that pipelines use beside their own, each with what it is the name of."""
    taken: dict[str, str] = {}
    for one in pipelines:
        for stream in streams_of(one):
            if stream != one.name:
                taken.setdefault(stream, f"the stream of input {stream[len(one.name) + 1 :]} of pipeline {one.name!r}")
        for ending in FILES:
            taken.setdefault(f"{one.name}.{ending}", f"a file of pipeline {one.name!r}")
    return taken


def shared_names(pipelines: Sequence[Pipeline], views: Sequence[ViewSection]) -> Iterator[tuple[int, str]]:
    """Places of pipelines whose name cannot be beside another's, and why."""
    taken, names = _taken(pipelines), {one.name for one in pipelines}
    on_spark = {f"view.{one.name}" for one in views if one.engine == "spark"}
    for index, one in enumerate(pipelines):
        what = taken.get(one.name)
        begins = [one.name[: dot.start()] for dot in re.finditer(r"\.", one.name)]
        for begin in begins:
            if begin in names and one.name.startswith(f"{begin}.backfill."):
                what = what or f"a backfill of pipeline {begin!r}"
        for view in (*begins, one.name):
            if view in on_spark:
                what = what or f"what runs the view {view.removeprefix('view.')!r} on Spark"
        if what is not None:
            yield index, f"{one.name!r} is also the name of {what}: give it another name"


def of_views(settings: Settings) -> Iterator[str]:
    """Sentences about views whose source nobody declares."""
    some = [("view", one) for one in settings.view] + [("conflated_topic", one) for one in settings.conflated_topic]
    known = {(one.vhost, one.name): None for _, one in some} | {(one.vhost, one.name): None for one in settings.queue}
    known |= {(one.vhost, one.name): None for one in settings.topics if one.key or one.key_from}
    for section, one in some:
        for name in [*([one.source] if one.source else []), *sorted(_joins_of(one))]:
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
