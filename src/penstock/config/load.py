"""From a settings file, the environment and command line options to `Settings`, and from mistakes to sentences.

Options win over the environment, the environment over the file, the file over the defaults.  All mistakes are told at
once, each with its place: file and line, section and key, and the nearest known name where one is unknown.

Which settings are in force is told as text, each with where it came from; secrets as asterisks, as their type writes
them.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache, partial
from itertools import chain
from pathlib import Path
from types import UnionType
from typing import Annotated, NamedTuple, Union, cast, get_args, get_origin

import orjson
from pydantic import BaseModel, ValidationError

from penstock.config.foreign import Converted, Remark, Verdict, is_foreign, read_bytes, read_foreign
from penstock.config.foreign.converted import DEPTH_MAX, Path_, refusal
from penstock.config.impossible import impossible
from penstock.config.mistakes import (
    Problem,
    SoundPart,
    as_written,
    copied,
    in_our_words,
    line_in,
    lines_of,
    sound_part,
    together,
    told,
    told_at,
    unit_of,
    unknown,
    without_consequences,
)
from penstock.config.queue_settings import KEY_ALIASES, QUEUE_KEYS, read_queue_settings
from penstock.config.queue_values import BadValue, in_line, read_value, written
from penstock.config.settings import Settings
from penstock.errors import SettingsError, known_name, nearest_name, told_as
from penstock.records.address_settings import OWN, read_address_value
from penstock.records.queue_settings import QueueSettings
from penstock.records.regular_expressions import SPECIAL, compile_pattern, topic_pattern
from penstock.units import format_duration, format_size, shown_address

Judge = Callable[[Settings], Iterable[Problem]]
"""What else is wrong with settings, to be told with the rest: what their filters say is read above this floor."""


def no_judge(settings: Settings) -> Iterable[Problem]:
    """Nothing is."""
    return ()


_VARIABLE = re.compile(r"PENSTOCK_([A-Z0-9_]+?)__([A-Z0-9_]+)\Z")


def overrides(
    environ: Mapping[str, str], options: Mapping[str, str], problems: list[Problem], labels: dict[Path_, str]
) -> Iterator[tuple[Path_, object, str]]:
    """Single values from the environment, then from options, as (path, value, label).

    problems, labels: get the variables that override nothing, and what to call each path in a message.
    """
    known = _single_values()
    for variable in sorted(environ):
        match = _VARIABLE.match(variable)
        if match is None:
            continue
        path = (match[1].lower(), *match[2].lower().split("__"))
        if path not in known:
            labels[path] = f"environment variable {variable}"
            problems.append(Problem(path, f"overrides no single setting{_nearest(path, known)}"))
            continue
        labels[path] = f"environment variable {variable}"
        yield path, _typed(environ[variable], known[path]), labels[path]
    for place, value in options.items():
        path = tuple(place.split("."))
        labels[path] = f"option --{path[-1].replace('_', '-')}"
        yield path, value, labels[path]


def _nearest(path: Path_, known: Iterable[tuple[str, ...]]) -> str:
    """What may be meant by a variable that overrides nothing: a section of this name, or a key of its section."""
    section = str(path[0])
    inside = {one for one in known if one[0] == section}
    if not inside:
        sections = sorted({one[0] for one in known})
        hint = known_name(section, sections, f"; there is {', '.join(sections)}")
        return f": no section {section!r} has one{hint}"
    keys = {".".join(one[1:]): one for one in inside}
    near = nearest_name(".".join(map(str, path[1:])), keys)
    if near is None:
        return f"; [{section}] has {', '.join(sorted(keys))}"
    return f"; did you mean {variable_name(keys[near])!r}?"


def variable_name(path: Sequence[str]) -> str:
    """`PENSTOCK_LOG__RETENTION__AGE` for ("log", "retention", "age")."""
    return "PENSTOCK_" + "__".join(path).upper()


@cache
def _single_values() -> dict[tuple[str, ...], frozenset[object]]:
    """Path of every value that a variable may override -> the types in its annotation."""
    found: dict[tuple[str, ...], frozenset[object]] = {}

    def walk(model: type[BaseModel], path: tuple[str, ...]) -> None:
        for name, field in model.model_fields.items():
            inner = field.annotation
            section = _section(inner)
            if section is not None:
                walk(section, (*path, name))
            elif path and get_origin(inner) not in {tuple, dict}:
                found[*path, name] = frozenset(_types(cast("object", inner)))

    walk(Settings, ())
    return found


def _section(annotation: object) -> type[BaseModel] | None:
    """The section that a field is, also where it may be absent; None for a value."""
    for one in get_args(annotation) if get_origin(annotation) in {Union, UnionType} else (annotation,):
        if isinstance(one, type) and issubclass(one, BaseModel):
            return one
    return None


def _types(annotation: object) -> Iterator[object]:
    if get_origin(annotation) is Annotated:
        metadata = get_args(annotation)[1:]
        unit_read = any(type(item).__name__ == "BeforeValidator" for item in metadata)
        yield from [str] if unit_read else _types(get_args(annotation)[0])
    elif get_args(annotation):
        for item in get_args(annotation):
            yield from _types(item)
    else:
        yield annotation


def _typed(text: str, types: frozenset[object]) -> object:
    """The text of a variable as the type its setting has; what cannot be is left as text for the check to refuse."""
    if bool in types and text.lower() in {"true", "false"}:
        return text.lower() == "true"
    if int in types and str not in types and re.fullmatch(r"[+-]?\d{1,18}", text):
        return int(text)
    if float in types and str not in types and re.fullmatch(r"[+-]?\d{1,18}(\.\d{1,18})?", text):
        return float(text)
    return text


_QUEUE_OWN = ("name", "vhost", "durable", "auto_delete", "arguments")


def load_file(
    path: str | Path,
    *,
    environ: Mapping[str, str] | None = None,
    options: Mapping[str, str] | None = None,
    judge: Judge = no_judge,
    remarked: Callable[[Sequence[Remark]], object] | None = None,
) -> Settings:
    """Settings from a TOML file, or from one of AMPS, Artemis or RabbitMQ, whose remarks are handed to `remarked`.

    Raises SettingsError for whatever cannot be used, the file itself included.  Of `environ` only
    `PENSTOCK_<SECTION>__<KEY>` is looked at, and what an AMPS file names as `${NAME}`; `options` are `section.key` ->
    text from the command line.
    """
    source = str(path)
    data = read_bytes(Path(path), source)
    if is_foreign(data):
        converted = read_foreign(path, environ, data=data)
        if remarked is not None:
            remarked(converted.remarks)
        return load_converted(converted, environ=environ, options=options, judge=judge)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise SettingsError(f"{source}: is not UTF-8 text (byte {error.start})") from error
    return load_text(text.replace("\r\n", "\n"), source=source, environ=environ, options=options, judge=judge)


def load_text(
    text: str,
    *,
    source: str = "settings",
    environ: Mapping[str, str] | None = None,
    options: Mapping[str, str] | None = None,
    judge: Judge = no_judge,
) -> Settings:
    """Settings from TOML text; `source` names it in messages."""
    raw = text.encode(errors="surrogatepass")
    if raw.count(b".") >= DEPTH_MAX and (found := compile_pattern(_LONG_CHAIN).search(raw)) is not None:
        line = raw.count(b"\n", 0, found.start()) + 1
        raise SettingsError(f"{source}:{line}: a key has more than {DEPTH_MAX} names with dots between them")
    try:
        data = tomllib.loads(text)
    except RecursionError:
        raise SettingsError(f"{source}: {_TOO_DEEP}") from None
    except ValueError as error:  # a number of thousands of digits is no TOMLDecodeError
        raise SettingsError(f"{source}: is {_what_instead(text)}: {error}") from error
    if _is_deep(data):
        raise SettingsError(f"{source}: {_TOO_DEEP}")
    return load_mapping(data, source=source, environ=environ, options=options, text=text, judge=judge)


def _what_instead(text: str) -> str:
    """What a text is that is no TOML: one of JSON has lost its braces, or never was an object of definitions."""
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return "no TOML"
    return "JSON, but no object of RabbitMQ's definitions, and no TOML"


_NAME = r"""(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')[ \t]*"""
_LONG_CHAIN = rf"(?m)(?:^|[\[{{,])[ \t]*(?:{_NAME}\.[ \t]*){{{DEPTH_MAX}}}"
"""The reader takes memory with the square of the names of a key.  For RE2: `re` of Python 3.11.2, which is Debian's,
does not find what a group that gives nothing back has matched many times."""

_TOO_DEEP = f"tables and lists are nested deeper than {DEPTH_MAX}"


def _is_deep(data: Mapping[str, object]) -> bool:
    """Whether a document is nested deeper than any setting is; level by level, for who looks at values recurses."""
    level: list[object] = [data]
    for _ in range(DEPTH_MAX):
        tables = (cast("Mapping[str, object]", one).values() for one in level if isinstance(one, Mapping))
        lists = (cast("list[object]", one) for one in level if isinstance(one, list))
        level = [one for part in chain(tables, lists) for one in part if isinstance(one, (Mapping, list))]
        if not level:
            return False
    return True


def load_mapping(
    data: Mapping[str, object],
    *,
    source: str = "settings",
    environ: Mapping[str, str] | None = None,
    options: Mapping[str, str] | None = None,
    text: str | None = None,
    judge: Judge = no_judge,
) -> Settings:
    """Settings from a mapping of the file's structure, which is not changed; `text` gives line numbers where known."""
    read = _read(data, environ or {}, options or {}, judge)
    lines = {} if text is None else lines_of(text)
    if read.settings is None or read.problems:
        raise refusal(read.problems, lambda problem: told(problem, data, source, lines, read.labels))
    origins = {".".join(map(str, path)): line_in(source, lines, path) for path in _places(data)}
    return read.settings.with_origins(origins | read.origins)


def load_converted(
    converted: Converted,
    *,
    environ: Mapping[str, str] | None,
    options: Mapping[str, str] | None,
    judge: Judge = no_judge,
) -> Settings:
    """Settings out of a foreign file; each mistake and each origin has the file and line it was read at.

    Raises SettingsError also for what is right there and not done here.
    """
    read = _read(converted.settings, environ or {}, options or {}, judge)
    wrong = [
        remark.place.told(f"{remark.verdict.value}: {remark.text}")
        for remark in converted.remarks
        if remark.verdict is Verdict.REFUSED
    ]
    wrong += [told_at(problem, converted, read.labels) for problem in read.problems]
    if read.settings is None or wrong:
        raise refusal(wrong, str)
    origins = {".".join(map(str, path)): place.where for path, place in converted.places.items() if len(path) > 1}
    return read.settings.with_origins(origins | read.origins)


def judged(converted: Converted) -> tuple[Remark, ...]:
    """The remarks on a foreign file.  Raises SettingsError where its settings cannot be used."""
    if problems := _read(converted.settings, {}, {}).problems:
        raise refusal(problems, lambda problem: told_at(problem, converted, {}))
    return converted.remarks


class _Read(NamedTuple):
    """Settings, or what is wrong with them; where single values came from beside the file."""

    settings: Settings | None
    problems: list[Problem]
    origins: dict[str, str]
    labels: dict[Path_, str]


def _read(
    data: Mapping[str, object], environ: Mapping[str, str], options: Mapping[str, str], judge: Judge = no_judge
) -> _Read:
    merged: dict[str, object] = {name: copied(value) for name, value in data.items()}
    origins: dict[str, str] = {}
    labels: dict[Path_, str] = {}
    problems: list[Problem] = []
    for path, value, label in overrides(environ, options, problems, labels):
        _put(merged, path, value)
        origins[".".join(map(str, path))] = label
    problems += _read_queues(merged)
    problems += _read_addresses(merged)
    settings: Settings | None = None
    try:
        settings = Settings.model_validate(merged)
    except ValidationError as error:
        problems += [in_our_words(details) for details in without_consequences(error.errors())]
        sound = sound_part(merged, error)
    else:
        problems += impossible(settings)
        sound = SoundPart(settings, {})
    if sound is not None:
        problems += [problem._replace(path=sound.path(problem.path)) for problem in judge(sound.settings)]
    problems = [problem._replace(path=as_written(problem.path, merged)) for problem in problems]
    problems = together(problems)
    return _Read(settings, problems, origins, labels)


def _places(data: Mapping[str, object]) -> Iterator[Path_]:
    """(section, key) of every value that stands in a plain section, (section, 0, key) of those in lists of tables."""
    for section, value in data.items():
        if isinstance(value, Mapping):
            yield from _inner((section,), cast("Mapping[str, object]", value))
        elif isinstance(value, (list, tuple)):
            for index, table in enumerate(cast("Sequence[object]", value)):
                if isinstance(table, Mapping):
                    yield from _inner((section, index), cast("Mapping[str, object]", table))


def _inner(path: Path_, table: Mapping[str, object]) -> Iterator[Path_]:
    for key, value in table.items():
        yield (*path, key)
        if isinstance(value, Mapping):
            yield from _inner((*path, key), cast("Mapping[str, object]", value))


def _put(data: dict[str, object], path: Path_, value: object) -> None:
    for name in path[:-1]:
        inner = data.setdefault(str(name), {})
        if not isinstance(inner, dict):
            return  # a section of the wrong type: the check tells
        data = cast("dict[str, object]", inner)
    data[str(path[-1])] = value


# --- queues --------------------------------------------------------------------------------------------------------


def _tables(data: Mapping[str, object], section: str) -> list[tuple[int, dict[str, object]]]:
    """Each `[[section]]` with its place; of what is none the model tells."""
    found = data.get(section)
    every = enumerate(cast("list[object]", found)) if isinstance(found, list) else ()
    return [(index, cast("dict[str, object]", one)) for index, one in every if isinstance(one, dict)]


def _read_queues(data: dict[str, object]) -> list[Problem]:
    """Turn the keys of each `[[queue]]` into its `settings`; returns what cannot be read."""
    problems: list[Problem] = []
    for index, queue in _tables(data, "queue"):
        values: dict[str, object] = {}
        for key in [key for key in queue if key not in _QUEUE_OWN]:
            value = queue.pop(key)
            key = KEY_ALIASES.get(key, key)
            if key not in QUEUE_KEYS:
                problems.append(unknown(("queue", index, key), [*_QUEUE_OWN, *QUEUE_KEYS]))
                continue
            try:
                read_value(QUEUE_KEYS[key], value, "file", key)
                values[key] = value
            except BadValue as bad:
                problems.append(Problem(("queue", index, *bad.key.split(".")), str(bad)))
        try:
            settings = read_queue_settings(values, "file")
            _check_pattern(settings.underlying_topic, settings.default_publish_target)
        except BadValue as bad:
            problems.append(Problem(("queue", index, *bad.key.split(".")), str(bad)))
            settings = read_queue_settings({}, "file")
        queue["settings"], queue["given"] = settings, frozenset(values)
    return problems


def _read_addresses(data: dict[str, object]) -> list[Problem]:
    """Turn the keys of each `[[address]]` into its `values`; returns what cannot be read."""
    problems: list[Problem] = []
    for index, address in _tables(data, "address"):
        values: dict[str, object] = {}
        for key in [key for key in address if key not in OWN]:
            try:
                values[key] = read_address_value(key, address.pop(key))
            except ValueError as error:
                problems.append(Problem(("address", index, key), str(error)))
        address["values"] = values
    return problems


def _check_pattern(pattern: str | None, target: str | None) -> None:
    if pattern is None:
        return
    with told_as(partial(BadValue, "underlying_topic")):
        shows = topic_pattern(pattern)
    if target is None and not SPECIAL.isdisjoint(pattern):
        raise BadValue("default_publish_target", f"is missing, which the pattern {pattern!r} of topics needs")
    if target is not None and not shows(target):
        raise BadValue("default_publish_target", f"{target!r} is not among the topics that {pattern!r} shows")


_IN_FORCE = ("server", "listen", "before_login", "tls", "amqp", "log", "cluster", "sql", "spark")


def in_force(settings: Settings) -> list[tuple[str, str, str]]:
    """Name, value as text and origin of every single setting, of users, and of what queues have beside the defaults."""
    sections = ((name, getattr(settings, name)) for name in _IN_FORCE)
    lines = [line for name, table in sections if table is not None for line in _lines(settings, name, table)]
    for index, user in enumerate(settings.user):
        told_of = _lines(settings, f"user.{index}", user)
        lines += [(f'user "{user.name}" {place.rpartition(".")[2]}', value, origin) for place, value, origin in told_of]
    return [*lines, *_queue_lines(settings)]


def chosen(settings: Settings) -> list[tuple[str, str, str]]:
    """Those of `in_force` that are not the default."""
    return [line for line in in_force(settings) if line[2] != "default"]


def by_default(settings: Settings) -> dict[str, str]:
    """All others of `in_force`, as one text for each section and user."""
    found = dict[str, list[str]]()
    for name, value, origin in in_force(settings):
        if origin == "default":
            section, _, key = name.rpartition(" ") if " " in name else name.partition(".")
            found.setdefault(section, []).append(f"{key} = {value}")
    return {section: ", ".join(texts) for section, texts in found.items()}


def _queue_lines(settings: Settings) -> Iterator[tuple[str, str, str]]:
    usual = QueueSettings()
    for index, queue in enumerate(settings.queue):
        for name in (field.name for field in fields(QueueSettings)):
            value = cast("object", getattr(queue.settings, name))
            if value == getattr(usual, name):
                continue
            origin = settings.origin(f"queue.{index}.{name}")
            if origin == "default":
                origin = settings.origin(f"queue.{index}")  # what the reader of a foreign file put in
            yield f'queue "{queue.name}" {name}', in_line(written(QUEUE_KEYS[name], value, "file")), origin


def _lines(settings: Settings, place: str, table: BaseModel) -> Iterator[tuple[str, str, str]]:
    for key, field in type(table).model_fields.items():
        value = cast("object", getattr(table, key))
        inner = f"{place}.{key}"
        if isinstance(value, BaseModel):
            yield from _lines(settings, inner, value)
            continue
        origin = settings.origin(inner)
        if origin == "default":
            origin = settings.origin(place)  # an inline table has one origin for all of it
        yield inner, in_file(_told(value), unit_of(field)), origin


_SECRET = re.compile("secret|password|token|access[.]?key", re.IGNORECASE)
"""What Spark calls its settings that nobody is shown."""


def _told(value: object) -> object:
    """A value as it may stand in a log: addresses without their passwords, and no secrets of Spark's."""
    if isinstance(value, str) and "://" in value:
        return shown_address(value)
    if isinstance(value, Mapping):
        table = cast("Mapping[str, object]", value)
        return {key: "***" if _SECRET.search(key) else _told(one) for key, one in table.items()}
    return value


def in_file(value: object, unit: object) -> str:
    """A value as the settings file writes it."""
    if unit == "duration" and isinstance(value, int):
        return format_duration(value)
    if unit == "size" and isinstance(value, int):
        return format_size(value)
    return "off" if unit == "listener" and value is None else in_line(value)
