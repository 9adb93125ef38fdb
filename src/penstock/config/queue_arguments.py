"""Queue settings as clients and administrators write them: AMQP arguments, keywords of Python calls, and policies.

AMQP: kebab case after `x-`; durations are milliseconds and sizes bytes, as RabbitMQ has them; our own durations may be
text with a unit too.  Arguments that nobody knows are accepted and have no effect, as in RabbitMQ; an argument that is
known is never taken without effect: a wrong type or range is refused.

Policies: RabbitMQ's own keys with milliseconds and bytes, and our queue settings in kebab case, from JSON or TOML to a
`Policy` whose values are checked.  Which queue a policy rules is the core's to say.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import cast

from penstock.config.exclusions import refuse_impossible
from penstock.config.queue_settings import KEY_ALIASES, QUEUE_KEYS, read_queue_settings
from penstock.config.queue_values import BadValue, argument_name, read_value, written
from penstock.errors import InvalidArgument, PreconditionFailed, known_name, shown, told_as
from penstock.records.declared_types import MAX_AGE, QUEUE_TYPES, QueueType
from penstock.records.queue_settings import APPLY_TO, Origin, Policy, QueueSettings
from penstock.records.regular_expressions import PatternError, compile_pattern
from penstock.units import parse_age

ALTERNATE = "alternate-exchange"

DECLARED = frozenset(
    {
        "underlying_topic",
        "exchange",
        "default_publish_target",
        "recovery_point",
        "kind",
        "initial_owner",
        "group_local_queue_domain",
        "queue_type",
        "message_type",
    }
)
"""Settings that say what a queue is: they come with its declare and not from outside."""

_KEYS: Mapping[str, str] = {
    **{name.replace("_", "-"): name for name in QUEUE_KEYS if name not in DECLARED},
    **{alias.replace("_", "-"): name for alias, name in KEY_ALIASES.items()},
}

_OF_STREAMS = ("stream-max-segment-size-bytes", "stream-filter-size-bytes")

_HARMLESS: Mapping[str, tuple[object, ...] | type] = {
    "queue-mode": ("default", "lazy"),
    "queue-version": (1, 2),
    **dict.fromkeys(("queue-master-locator", "queue-leader-locator"), str),
    "dead-letter-strategy": ("at-most-once", "at-least-once"),
    **dict.fromkeys(("max-in-memory-length", "max-in-memory-bytes", "target-group-size", "initial-cluster-size"), int),
    **dict.fromkeys(_OF_STREAMS, int),
}
"""RabbitMQ's keys that ask for nothing that is not done anyway, with the values they take.

Bodies live under one budget, there is one store and one instance, and a dead letter moves in one step.
"""

MIRRORS = frozenset(
    {
        "ha-mode",
        "ha-params",
        "ha-sync-mode",
        "ha-sync-batch-size",
        "ha-promote-on-failure",
        "ha-promote-on-shutdown",
    }
)
"""Keys of mirrored queues, which RabbitMQ itself has given up."""

NOT_HERE: Mapping[str, str] = {
    "max-age": "that of a stream comes with its declare (x-max-age), and no policy changes it",
    "federation-upstream": "there is no federation",
    "federation-upstream-set": "there is no federation",
    "federation-upstream-pattern": "there is no federation",
}
"""RabbitMQ's keys that would do something, and why they do not here."""

NO_MIRRORS = "there is one instance, so there are no mirrors"

OPERATOR_KEYS = frozenset(
    {
        "expires",
        "message-ttl",
        "max-length",
        "max-length-bytes",
        "max-in-memory-length",
        "max-in-memory-bytes",
        "delivery-limit",
        "queue-version",
        "overflow",
        "target-group-size",
    }
)
"""What an operator policy may say."""

PRIORITY_MOST = 2**31 - 1


def read_policy(
    vhost: str,
    name: object,
    pattern: object,
    definition: object,
    *,
    priority: object = 0,
    apply_to: object = "all",
    operator: bool = False,
    origin: Origin = "command",
) -> Policy:
    """A policy out of what somebody gave.  Raises InvalidArgument with the reason."""
    what = "operator policy" if operator else "policy"
    if not isinstance(name, str) or not name:
        raise InvalidArgument(f"a {what} needs a name, not {shown(name)}")
    where = "" if origin == "file" else f"{what} '{name}': "  # of a file, its place says that
    found = _read_pattern(where, pattern)
    if not isinstance(priority, int) or isinstance(priority, bool) or abs(priority) > PRIORITY_MOST:
        raise InvalidArgument(
            f"{where}priority {shown(priority)} is not a whole number in {-PRIORITY_MOST}..{PRIORITY_MOST}"
        )
    if apply_to not in APPLY_TO:
        hint = known_name(apply_to, list(APPLY_TO)) if isinstance(apply_to, str) else ""
        raise InvalidArgument(f"{where}apply-to {shown(apply_to)} is not one of {', '.join(APPLY_TO)}{hint}")
    if not isinstance(definition, Mapping):
        raise InvalidArgument(f"{where}the definition {shown(definition)} is not an object of keys and values")
    table = cast("Mapping[str, object]", definition)
    try:
        settings, alternate = _read_definition(table, operator=operator)
    except BadValue as bad:
        raise InvalidArgument(f"{where}{bad.key}: {bad}") from None
    return Policy(
        vhost, name, found, dict(table), settings, alternate, priority, apply_to, operator, origin
    )  # fmt: skip


def _read_pattern(where: str, pattern: object) -> str:
    if not isinstance(pattern, str):
        wrong = "is missing" if pattern is None else f"{shown(pattern)} is not text"
        raise InvalidArgument(f"{where}the pattern {wrong}")
    with told_as(InvalidArgument, f"{where}pattern '{pattern}': ", instead=PatternError):
        compile_pattern(pattern)
    return pattern


def _read_definition(definition: Mapping[str, object], *, operator: bool) -> tuple[dict[str, object], str | None]:
    """Settings of queues by name, and the alternate exchange of exchanges.  Raises BadValue with the key."""
    if not definition:
        raise BadValue("definition", "it is empty: name at least one key")
    settings: dict[str, object] = {}
    alternate: str | None = None
    for key, value in definition.items():
        if operator and key not in OPERATOR_KEYS:
            may = sorted(OPERATOR_KEYS)
            known = known_name(key, may, f"; it may say {', '.join(may)}")
            raise BadValue(key, f"an operator policy may not say it{known}")
        if key == ALTERNATE:
            if not isinstance(value, str):
                raise BadValue(key, f"{shown(value)} is not text")
            alternate = value
        elif key in _HARMLESS:
            _check_harmless(key, value, _HARMLESS[key])
        else:
            name = _KEYS.get(key)
            if name is None:
                raise BadValue(key, _why_unknown(key))
            if name in settings:
                raise BadValue(key, "it is there twice, under two names")
            settings[name] = _value(key, name, value)
    return settings, alternate


def _value(key: str, name: str, value: object) -> object:
    if name == "delivery_limit" and isinstance(value, int) and not isinstance(value, bool):
        value = max(value, -1)  # RabbitMQ takes any integer; below 0 there is no limit
    return read_value(QUEUE_KEYS[name], value, "amqp", key)


_GROUPS = frozenset({"x-quorum-initial-group-size", "x-quorum-target-group-size", "x-initial-cluster-size"})
"""How many servers have a copy: one at least, as in RabbitMQ."""


def _check_harmless(key: str, value: object, allowed: tuple[object, ...] | type) -> None:
    value = value.decode(errors="replace") if isinstance(value, bytes) else value
    if isinstance(allowed, tuple):
        if not any(value == one and type(value) is type(one) for one in allowed):
            raise BadValue(key, f"{shown(value)} is not one of {', '.join(map(str, allowed))}")
        return
    least = 1 if key in _GROUPS else 0
    if type(value) is not allowed or (isinstance(value, int) and value < least):  # a time is none, nor is truth
        raise BadValue(key, f"{shown(value)} is not {'text' if allowed is str else f'a whole number from {least} on'}")


def _why_unknown(key: str) -> str:
    name = key.replace("-", "_")
    if key in NOT_HERE:
        return NOT_HERE[key]
    if key in MIRRORS:
        return NO_MIRRORS
    if name in DECLARED:
        return "it belongs to the declare of a queue, and no policy changes it"
    return f"no key of a policy{known_name(key.replace('_', '-'), [*_KEYS, *_HARMLESS, ALTERNATE])}"


def parse_definition(text: str | bytes) -> dict[str, object]:
    """A definition out of JSON.  Raises InvalidArgument for what is none, and for a key that is there twice."""
    try:
        value: object = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"the definition {shown(text)} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidArgument(f"the definition {shown(value)} is not a JSON object of keys and values")
    return cast("dict[str, object]", value)


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    table = dict(pairs)
    if len(table) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidArgument(f"the definition has the key '{twice}' twice")
    return table


def why_impossible(settings: QueueSettings) -> str | None:
    """Why settings of a queue cannot be together; None where they can.  For the core, which asks it of policies."""
    try:
        refuse_impossible(settings)
    except BadValue as bad:
        return f"{bad.key}: {bad}"
    return None


_BY_ARGUMENT = {
    **{key.argument: name for name, key in QUEUE_KEYS.items()},
    **{argument_name(alias): name for alias, name in KEY_ALIASES.items()},
    MAX_AGE: "expiration",
}

TYPE = argument_name("queue_type")

_IDLE: Mapping[str, tuple[object, ...] | type] = {
    **{f"x-{key}": _HARMLESS[key] for key in ("dead-letter-strategy", "max-in-memory-length", "max-in-memory-bytes")},
    **dict.fromkeys(_GROUPS, int),
    "x-member-placement-tag": str,
    **{f"x-{key}": int for key in _OF_STREAMS},
}
"""What arguments take that ask for nothing in some type (`declared_types`)."""

HARMLESS_ARGUMENTS: Mapping[str, tuple[object, ...]] = {
    "x-queue-mode": ("default", "lazy"),
    "x-queue-version": (1, 2),
    "x-queue-leader-locator": ("client-local", "balanced", "random", "least-leaders"),
}
"""Values of RabbitMQ's arguments that ask for nothing that a queue here does not do anyway.

Lazy: bodies live under one budget whatever the mode.  Version and leader: there is one store and one instance.
"""

_PREFIX_BYTES = 64
"""A longer `x-name-prefix` is refused, as by RabbitMQ."""


DEDUPLICATION = "x-message-deduplication"
"""Of a plugin of RabbitMQ: nothing enters while a message with the same `x-deduplication-header` is in the queue."""

DEDUPLICATES: Mapping[str, object] = {"dedup_key": "/@headers/x-deduplication-header", "unique": True}
"""The settings that do the same."""


def _meant(arguments: Mapping[str, object]) -> dict[str, object]:
    """Arguments of ours that a plugin's stands for."""
    if arguments.get(DEDUPLICATION) is not True:
        return {}
    return {argument_name(name): value for name, value in DEDUPLICATES.items()}


GENERATED = "amq.gen-"
"""What the names begin with that the server makes.  Who brings definitions may bring some that another one has made."""


QUEUE_ARGUMENTS = frozenset(
    [*_BY_ARGUMENT, *_IDLE, *HARMLESS_ARGUMENTS, DEDUPLICATION, "x-name-prefix", *(f"x-{key}" for key in _HARMLESS)]
)
"""What a `queue.declare` may say, of any type of queue; another argument has no effect."""


def name_prefix(arguments: Mapping[str, object], queue: str, vhost: str) -> str:
    """What the name begins with that the server makes: `x-name-prefix` and a hyphen, `amq.gen-` without one.

    A queue that brings its name takes nothing of it.  Raises PreconditionFailed for what is no text of 1 to 64 bytes.
    """
    given = arguments.get("x-name-prefix")
    if given is None:
        return GENERATED
    what = f"invalid arg 'x-name-prefix' for queue '{queue}' in vhost '{vhost}'"
    data = given.encode() if isinstance(given, str) else given
    if not isinstance(data, bytes):
        raise PreconditionFailed(f"{what}: {given!r} is no text")
    if not 0 < len(data) <= _PREFIX_BYTES:
        raise PreconditionFailed(f"{what}: it has {len(data)} bytes, and 1 to {_PREFIX_BYTES} are allowed")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise PreconditionFailed(f"{what}: {data!r} is no UTF-8") from None
    if text.startswith("amq."):
        raise PreconditionFailed(f"{what}: names that begin with 'amq.' are reserved")
    return f"{text}-"


def queue_settings(arguments: Mapping[str, object], queue: str = "", vhost: str = "/") -> QueueSettings:
    """The settings that the arguments of a `queue.declare` ask for.

    Values are as the table codec gives them (int, bool, float, str or bytes, dict, list).  Such a queue is
    `round-robin` unless it says otherwise.  Raises PreconditionFailed (406) naming the argument, its value and what is
    allowed; `queue` and `vhost` are for its text alone.
    """
    where = f" for queue '{queue}' in vhost '{vhost}'"
    if DEDUPLICATION in arguments:
        if not isinstance(arguments[DEDUPLICATION], bool):
            text = f"{arguments[DEDUPLICATION]!r} is not true or false"
            raise PreconditionFailed(f"invalid arg '{DEDUPLICATION}'{where}: {text}")
        arguments = {**_meant(arguments), **arguments}
    kind = _type_of(arguments, where)
    known: dict[str, object] = {}
    spelled: dict[str, str] = {}
    for argument, value in arguments.items():
        if argument in kind.refused:
            raise PreconditionFailed(f"invalid arg '{argument}'{where} of queue type rabbit_{kind.name}_queue")
        idle = _IDLE[argument] if argument in kind.idle else HARMLESS_ARGUMENTS.get(argument)
        if idle is not None:
            with told_as(PreconditionFailed, f"invalid arg '{argument}'{where}: ", instead=BadValue):
                _check_harmless(argument, value, idle)
            continue
        if argument == MAX_AGE:
            value = _age(value, where)
        name = _BY_ARGUMENT.get(argument)
        if name is not None:
            if name in spelled:
                raise PreconditionFailed(
                    f"invalid arg '{argument}'{where}: it is the same as {spelled[name]}, which is there too"
                )
            known[name] = value
            spelled[name] = argument
    known.setdefault("fairness_model", "round-robin")
    try:
        return read_queue_settings(known, "amqp", lambda name: spelled.get(name) or argument_name(name))
    except BadValue as bad:
        raise PreconditionFailed(f"invalid arg '{bad.key}'{where}: {bad}") from None


def _age(value: object, where: str) -> int:
    """Milliseconds of an `x-max-age`."""
    text = value.decode(errors="replace") if isinstance(value, bytes) else value
    with told_as(PreconditionFailed, f"invalid arg '{MAX_AGE}'{where}: invalid_max_age: "):
        return parse_age(text if isinstance(text, str) else repr(text)) // 1000


def _type_of(arguments: Mapping[str, object], where: str) -> QueueType:
    """The type that a declare asks for; PreconditionFailed, in RabbitMQ's words, for one that nobody knows."""
    name = arguments.get(TYPE, "classic")
    if isinstance(name, bytes):
        name = name.decode(errors="replace")
    if not isinstance(name, str) or name not in QUEUE_TYPES:
        known = ", ".join(QUEUE_TYPES)
        raise PreconditionFailed(f"invalid arg '{TYPE}'{where}: unsupported queue type {name!r}, none of {known}")
    return QUEUE_TYPES[name]


def typed(
    arguments: Mapping[str, object], default: str | None, *, durable: bool, exclusive: bool, auto_delete: bool
) -> Mapping[str, object]:
    """The arguments of a declare in a vhost whose queues are of the type `default` where they name none and may be."""
    if default in (None, "classic") or TYPE in arguments:
        return arguments
    if QUEUE_TYPES[str(default)].lasting and (exclusive or auto_delete or not durable):
        return arguments
    return {**arguments, TYPE: str(default)}


def given_arguments(arguments: Mapping[str, object]) -> frozenset[str]:
    """Names of the settings that the arguments of a `queue.declare` give."""
    named = [_BY_ARGUMENT[argument] for argument in arguments if argument in _BY_ARGUMENT]
    return frozenset([*named, *(_BY_ARGUMENT[argument] for argument in _meant(arguments))])


def idle_arguments(queue: str, arguments: Mapping[str, object], given: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Arguments that ask for what no key of the settings file says, and so of nobody: each with why.

    given: the keys that are written there
    """
    for argument, value in arguments.items():
        name = _BY_ARGUMENT.get(argument)
        if name is None or name in given:
            continue
        try:
            asked = getattr(queue_settings({argument: value}, queue), name)
        except PreconditionFailed as error:
            if argument != TYPE:  # of definitions.json a type that is none is told with what it is not here
                yield argument, str(error)
            continue
        if asked != getattr(QueueSettings(), name):
            yield argument, f"declares of clients are compared with it, and it does nothing: write {name} beside name"


def given_names(values: Mapping[str, object], before: frozenset[str] = frozenset()) -> frozenset[str]:
    """Names of the settings that keyword arguments give, None taking one back; beside those given before."""
    named = {KEY_ALIASES.get(name, name): value for name, value in values.items()}
    known = named.keys() & QUEUE_KEYS.keys()
    return (before - known) | {name for name in known if named[name] is not None}


def arguments_of(settings: QueueSettings, given: frozenset[str], arguments: Mapping[str, object]) -> dict[str, object]:
    """Arguments of an AMQP declare that makes a queue with these settings of its own.

    given: names of those that somebody gave it.  arguments: of its declare, which are among them as they are.
    """
    out = dict(arguments)
    there = given_arguments(arguments)
    told = set(given) if settings.fairness_model == "round-robin" else {*given, "fairness_model"}
    for name in sorted(told - there):
        value = getattr(settings, name)
        if name in QUEUE_KEYS and value is not None:
            out[argument_name(name)] = written(QUEUE_KEYS[name], value, "amqp")
    return out


def queue_settings_from_mapping(
    values: Mapping[str, object], queue: str = "", base: QueueSettings | None = None,
    given: frozenset[str] = frozenset(),
) -> QueueSettings:  # fmt: skip
    """The settings that keyword arguments ask for: snake case; durations as text, seconds or timedelta.

    None stands for the default of a key.  `base` gives what is not named (altering a queue), `given` names
    what somebody has said of that.  Raises InvalidArgument
    for an unknown key, with the nearest known one, and for a value that its key does not take.
    """
    values = {KEY_ALIASES.get(name, name): value for name, value in values.items()}
    for name in values:
        refuse_unknown(name)
    try:
        return read_queue_settings(values, "python", base=base, given=given)
    except BadValue as bad:
        raise InvalidArgument(f"{bad.key} of queue {queue!r}: {bad}") from None


def refuse_unknown(name: str) -> None:
    """Raise InvalidArgument unless `name` is a setting of a queue."""
    if name not in QUEUE_KEYS:
        raise InvalidArgument(f"{name!r} is no setting of a queue{known_name(name, QUEUE_KEYS)}")
