"""Mistakes in the settings: what sound sections say together and cannot be, and how each mistake is told.

It is told by its place in the file it came from, and a sentence.

Pipelines and views on Spark share names of streams on the server and of files beside checkpoints.  A pipeline `p` over
several inputs has the streams `p.a`, `p.b`; its backfills are `p.backfill.<id>`, and beside its checkpoint `p` lie
`p.json`, `p.lock` and others.  A pipeline that is called so itself would share them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, cast, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from penstock.config.action_section import wrong_actions
from penstock.config.foreign import Converted
from penstock.config.foreign.converted import Path_, Place
from penstock.config.pipeline_inputs import ONLY
from penstock.config.pipeline_section import Pipeline
from penstock.config.sections import DOORS
from penstock.config.settings import Settings
from penstock.config.vhost_sections import ViewSection, wrong_views
from penstock.errors import known_name
from penstock.units import format_size


class Problem(NamedTuple):
    """One mistake: where, and a sentence."""

    path: Path_
    text: str


def told(
    problem: Problem, data: Mapping[str, object], source: str, text: str | None, overrides: Mapping[Path_, str]
) -> str:
    """A mistake in TOML or in a mapping; `overrides` are labels of values from the environment and options."""
    for length in range(len(problem.path), 0, -1):
        label = overrides.get(problem.path[:length])
        if label is not None:
            return f"{label}: {problem.text}"
    line = line_of(text, problem.path) if text is not None else None
    return f"{source}{f':{line}' if line else ''}: {place_of(problem.path, data)}: {problem.text}"


def told_at(problem: Problem, converted: Converted, overrides: Mapping[Path_, str]) -> str:
    """A mistake in a file of others."""
    for length in range(len(problem.path), 0, -1):
        label = overrides.get(problem.path[:length])
        if label is not None:
            return f"{label}: {problem.text}"
    return place_at(problem, converted).told(problem.text)


def place_at(problem: Problem, converted: Converted) -> Place:
    """The place of the value, or the nearest around it with the rest in our own words."""
    for length in range(len(problem.path), 0, -1):
        place = converted.places.get(problem.path[:length])
        if place is not None:
            rest = ".".join(str(part) for part in problem.path[length:])
            return place._replace(what=f"{place.what} {rest}".rstrip())
    return Place(converted.source, 0, place_of(problem.path, converted.settings))


def place_of(path: Path_, data: Mapping[str, object]) -> str:
    """`[server] sync`, `[[queue]] "to-ship" retry.factor`."""
    section, *rest = path
    if rest and isinstance(rest[0], int):
        tables = data.get(str(section))
        name: object = None
        if isinstance(tables, (list, tuple)) and rest[0] < len(cast("Sequence[object]", tables)):
            table = cast("Sequence[object]", tables)[rest[0]]
            name = cast("Mapping[str, object]", table).get("name") if isinstance(table, Mapping) else None
        which = f'"{name}"' if isinstance(name, str) and name else f"number {rest[0] + 1}"
        head, rest = f"[[{section}]] {which}", rest[1:]
    else:
        head = f"[{section}]"
    keys = ""
    for key in rest:
        keys += f"[{key + 1}]" if isinstance(key, int) else f"{'.' if keys else ''}{key}"
    return f"{head} {keys}".rstrip()


_HEADER = re.compile(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"""\s*["']?([A-Za-z0-9_-]+)["']?\s*[.=]""")


def lines_of(text: str) -> dict[Path_, int]:
    """The line, from 1, of every section and key that the text shows plainly."""
    seen: dict[str, int] = {}
    lines: dict[Path_, int] = {}
    inside: Path_ = ()
    for number, line in enumerate(text.splitlines(), 1):
        header = _HEADER.match(line)
        key = _KEY.match(line) if header is None else None
        if header is not None:
            first, *rest = [part.strip("\"' ") for part in header[2].split(".")]
            if header[1] == "[[" and not rest:
                seen[first] = seen.get(first, -1) + 1
            inside = (first, seen[first], *rest) if first in seen else (first, *rest)
            lines.setdefault(inside, number)
        elif key is not None:
            lines.setdefault((*inside, key[1]), number)
    return lines


def line_of(text: str, path: Path_) -> int | None:
    """Line, from 1, of the key at `path`, or of its section; None where the text does not show it plainly."""
    names = [part for part in path if isinstance(part, str)]
    index = next((part for part in path if isinstance(part, int)), None)
    seen = -1
    inside: list[str] = []
    best: int | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if (header := _HEADER.match(line)) is not None:
            inside = [part.strip("\"' ") for part in header[2].split(".")]
            seen += header[1] == "[[" and inside == names[:1]
            found = inside
        elif (key := _KEY.match(line)) is not None:
            found = [*inside, key[1]]
        else:
            continue
        if index in {None, seen} and found == names[: len(found)]:
            if header is None:
                return number
            best = best or number
    return best


LATER_SECTIONS = frozenset({"archive", "bulk", "dashboard", "otel", "replication", "schedule"})
"""Sections that are taken and refused for now."""

LATER_KEYS: Mapping[str, frozenset[str]] = {
    "topic": frozenset({"schema", "retention"}),
}
"""Keys of known sections that are taken and refused for now."""

NOT_YET = "is not supported in this version"


FORMS: Mapping[str, str] = {
    r"^[\w.]+:[\w.]+$": "module:function, as in busy:busy",
    r"^[A-Za-z_][A-Za-z0-9_]*$": "a name of letters, digits and _ that begins with no digit",
    r"^[A-Za-z0-9][A-Za-z0-9_.-]*$": "a name of letters, digits, _, . and - that begins with a letter or digit",
}
"""What patterns mean."""


def unknown(path: Path_, known: Sequence[str]) -> Problem:
    """A section or key that is not there, or not yet; `known` are those that are."""
    section, key = str(path[0]), str(path[-1])
    if len(path) == 1:
        if section in LATER_SECTIONS:
            return Problem(path, f"the section {NOT_YET}")
        return Problem(path, f"unknown section{known_name(section, list(known))}")
    if key in LATER_KEYS.get(section, ()):
        return Problem(path, NOT_YET)
    return Problem(path, f"unknown key{known_name(key, list(known))}")


def in_our_words(details: ErrorDetails) -> Problem:
    """pydantic's finding in our words."""
    path: Path_ = details["loc"]
    value: object = details["input"]
    context = details.get("ctx", {})
    kind = details["type"]
    if kind == "extra_forbidden":
        return unknown(path, _keys_at(path[:-1]))
    if kind in ("greater_than_equal", "less_than_equal") and _is_size(path):
        low = kind == "greater_than_equal"
        limit = format_size(context["ge" if low else "le"])
        given = format_size(value) if isinstance(value, int) else value
        return Problem(path, f"must be at {'least' if low else 'most'} {limit}, not {given}")
    if kind in _SENTENCES:
        return Problem(path, _SENTENCES[kind](path, value, {"msg": details["msg"], **context}))
    shown = "" if "password" in path else f", not {value!r}"
    wording = details["msg"].replace("Input should be", "must be")
    return Problem(path, f"{wording[:1].lower()}{wording[1:]}{shown}")


def _no_choice(path: Path_, value: object, context: Mapping[str, object]) -> str:
    expected = str(context.get("expected", ""))
    choices = re.findall(r"'([^']*)'", expected)
    hint = known_name(value, choices) if isinstance(value, str) else ""
    return f"{value!r} is not {'one of ' if len(choices) > 1 else ''}{expected}{hint}"


def _no_table(path: Path_, value: object, context: Mapping[str, object]) -> str:
    return f"{value!r} is not a table"


def _no_list(path: Path_, value: object, context: Mapping[str, object]) -> str:
    return f"is a list of tables: write [[{path[0]}]]" if len(path) == 1 else f"{value!r} is not a list"


def _no_form(path: Path_, value: object, context: Mapping[str, object]) -> str:
    pattern = str(context.get("pattern", ""))
    return f"{value!r} is not {FORMS.get(pattern, f'of the form {pattern}')}"


_SENTENCES: Mapping[str, Callable[[Path_, object, Mapping[str, object]], str]] = {
    "missing": lambda path, value, context: "is missing",
    "value_error": lambda path, value, context: str(context.get("error", context["msg"])),
    "literal_error": _no_choice,
    "model_type": _no_table,
    "model_attributes_type": _no_table,
    "dict_type": _no_table,
    "tuple_type": _no_list,
    "too_short": lambda path, value, context: (
        f"needs at least {context.get('min_length', 1)} of them, and there is none"
    ),
    "string_too_short": lambda path, value, context: "is empty",
    "string_pattern_mismatch": _no_form,
}
"""What is wrong, by pydantic's name for it."""


def without_consequences(found: Sequence[ErrorDetails]) -> list[ErrorDetails]:
    """Without the remark that a list is too short whose items were all wrong: those are told of."""
    inside = {one["loc"][:length] for one in found for length in range(len(one["loc"]))}
    return [one for one in found if one["type"] != "too_short" or one["loc"] not in inside]


def together(problems: Iterable[Problem]) -> list[Problem]:
    """Types that one value is none of, in one sentence."""
    out: list[Problem] = []
    for problem in problems:
        path, (kind, is_not, value) = problem.path, problem.text.rpartition(", not ")
        before = out[-1].text if out and out[-1].path == path else ""
        other, no_choice = f"or {kind.removeprefix('must be ')}{is_not}{value}", f"{value} is not "
        if before.startswith(no_choice):  # a choice beside other types
            choice, hint, near = before.removeprefix(no_choice).partition("; did ")
            out[-1] = Problem(path, f"must be {choice} {other}{hint}{near}")
        elif kind.startswith("must be ") and before.endswith(is_not + value):
            out[-1] = Problem(path, f"{before.removesuffix(is_not + value)} {other}")
        else:
            out.append(problem)
    return out


def unit_of(field: FieldInfo) -> object:
    """`duration` or `size` where the type says so, also inside `| None`."""
    marks = (mark for one in get_args(field.annotation) for mark in getattr(one, "__metadata__", ()))
    extras = (cast("object", one.json_schema_extra) for one in (field, *marks) if isinstance(one, FieldInfo))
    return next((cast("dict[str, object]", extra).get("unit") for extra in extras if isinstance(extra, dict)), None)


def _is_size(path: Path_) -> bool:
    """Whether the value there is a number of bytes."""
    model = _model_at(path[:-1])
    field = None if model is None else model.model_fields.get(str(path[-1]))
    return field is not None and unit_of(field) == "size"


def _keys_at(path: Path_) -> list[str]:
    """Keys that the table at `path` may have."""
    model = _model_at(path)
    return [] if model is None else [field.alias or name for name, field in model.model_fields.items()]


def _model_at(path: Path_) -> type[BaseModel] | None:
    """What the table at `path` is; None where it has names of its own."""
    model: type[BaseModel] = Settings
    keyed = False
    for name in path:
        if isinstance(name, int) or keyed:  # a place in a list, or a name that the file gave
            keyed = False
            continue
        field = next((one for key, one in model.model_fields.items() if name in {key, one.alias}), None)
        inner = None if field is None else _model_in(field.annotation)
        if inner is None:
            return None
        model, keyed = inner, _origin(field) is dict
    return model


def _origin(field: FieldInfo | None) -> object:
    return None if field is None else get_origin(field.annotation)


def _model_in(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for item in get_args(annotation) if (found := _model_in(item)) is not None), None)


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
        for index, name in enumerate(names):
            if name in names[:index]:
                yield Problem((section, index, "name"), f"{name[1]!r} is there twice")
    patterns = [one.setting().key for one in settings.address]
    for index, key in enumerate(patterns):
        if key in patterns[:index]:
            yield Problem(("address", index, "pattern"), f"{key[1]!r} is there twice")


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
    for path, vhost in (*placed, *_places_of_pipelines(settings)):
        if vhost not in settings.vhosts:
            hint = known_name(vhost, list(settings.vhosts))
            yield Problem((*path, "vhost"), f"there is no [[vhost]] {vhost!r}{hint}")


def _unknown_people(settings: Settings) -> Iterator[Problem]:
    """Permissions of who is not there, or of what would narrow none."""
    people = [one.name for one in settings.users]
    for index, permission in enumerate(settings.permission):
        if (user := permission.user) not in people:
            yield Problem(("permission", index, "user"), f"there is no [[user]] {user!r}{known_name(user, people)}")
    permitted = {(one.user, one.vhost) for one in settings.permission}
    for index, one in enumerate(settings.topic_permission):
        if (one.user, one.vhost) not in permitted:
            why = f"there is no [[permission]] of {one.user!r} in vhost {one.vhost!r}, which this would narrow"
            yield Problem(("topic_permission", index, "user"), why)


def _actions(settings: Settings) -> Iterator[Problem]:
    for wrong in wrong_actions(settings.action, allow_execute=settings.server.allow_execute):
        yield Problem(("action", *wrong.path), wrong.why)


def _views(settings: Settings) -> Iterator[Problem]:
    queues = _names(settings)["queue"]
    for wrong in wrong_views(settings.view, settings.conflated_topic, queues):
        yield Problem((wrong.section, wrong.place, wrong.key), wrong.why)
    keyed = {(one.vhost, one.name) for one in settings.topic if one.key or one.key_from} - set(queues)
    for index, one in enumerate(settings.view):
        if one.engine == "spark" and (one.vhost, one.source) in keyed:
            why = f"{one.source!r} is a topic, and engine 'spark' computes views of queues"
            yield Problem(("view", index, "source"), why)


def _pipelines(settings: Settings) -> Iterator[Problem]:
    for index, why in shared_names(settings.pipeline, settings.view):
        yield Problem(("pipeline", index, "name"), why)


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
    _pipelines, _in_a_cluster, _links,
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
    taken = _taken(pipelines)
    on_spark = [f"view.{one.name}" for one in views if one.engine == "spark"]
    for index, one in enumerate(pipelines):
        what = taken.get(one.name)
        for other in pipelines:
            if one.name.startswith(f"{other.name}.backfill."):
                what = what or f"a backfill of pipeline {other.name!r}"
        for view in on_spark:
            if one.name == view or one.name.startswith(f"{view}."):
                what = what or f"what runs the view {view.removeprefix('view.')!r} on Spark"
        if what is not None:
            yield index, f"{one.name!r} is also the name of {what}: give it another name"
