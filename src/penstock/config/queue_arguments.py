"""Queue settings from AMQP arguments, and from keyword arguments of Python calls.

AMQP: kebab case after `x-`; durations are milliseconds and sizes bytes, as RabbitMQ has them; our own durations may be
text with a unit too.  Arguments that nobody knows are accepted and have no effect, as in RabbitMQ; an argument that is
known is never taken without effect: a wrong type or range, and a setting of a later version, are refused.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.config.known_names import MESSAGE_TYPE, NATIVE_TYPE, known_name, wrong_type
from penstock.config.queue_settings import KEY_ALIASES, LATER_QUEUE_KEYS, QUEUE_KEYS, read_queue_settings
from penstock.config.queue_values import BadValue, argument_name, written
from penstock.errors import InvalidArgument, PreconditionFailed
from penstock.records.queue_settings import QueueSettings

_BY_ARGUMENT = {
    **{key.argument: name for name, key in QUEUE_KEYS.items()},
    **{argument_name(alias): name for alias, name in KEY_ALIASES.items()},
}

_LATER_ARGUMENTS = frozenset(argument_name(name) for name in LATER_QUEUE_KEYS) | {
    "x-dead-letter-strategy",
    "x-max-age",
    "x-stream-max-segment-size-bytes",
}

HARMLESS_ARGUMENTS: Mapping[str, tuple[object, ...]] = {
    "x-message-type": (NATIVE_TYPE,),
    "x-queue-type": ("classic",),
    "x-queue-mode": ("default", "lazy"),
    "x-queue-version": (1, 2),
    "x-queue-leader-locator": ("client-local", "balanced"),
}
"""Values of RabbitMQ's arguments that ask for nothing that a queue here does not do anyway.

Lazy: bodies live under one budget whatever the mode.  Version and leader: there is one store and one instance.
"""

PREFIX_BYTES = 64
"""A longer `x-name-prefix` is refused, as by RabbitMQ."""


GENERATED = "amq.gen-"
"""What the names begin with that the server makes.  Who brings definitions may bring some that another one has made."""


def name_prefix(arguments: Mapping[str, object], queue: str = "", vhost: str = "/") -> str:
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
    if not 0 < len(data) <= PREFIX_BYTES:
        raise PreconditionFailed(f"{what}: it has {len(data)} bytes, and 1 to {PREFIX_BYTES} are allowed")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise PreconditionFailed(f"{what}: {data!r} is no UTF-8") from None
    if text.startswith("amq."):
        raise PreconditionFailed(f"{what}: names that begin with 'amq.' are reserved")
    return f"{text}-"


def queue_settings(
    arguments: Mapping[str, object], queue: str = "", vhost: str = "/", *, over_amqp: bool = True
) -> QueueSettings:
    """The settings that the arguments of a `queue.declare` ask for.

    Values are as the table codec gives them (int, bool, float, str or bytes, dict, list).  Such a queue is
    `round-robin` unless it says otherwise; with `over_amqp` False it is `proportional`.  Raises PreconditionFailed
    (406) naming the argument, its value and what is allowed; `queue` and `vhost` are for its text alone.
    """
    where = f" for queue '{queue}' in vhost '{vhost}'"
    known: dict[str, object] = {}
    spelled: dict[str, str] = {}
    for argument, value in arguments.items():
        name = _BY_ARGUMENT.get(argument)
        if name is not None:
            if name in spelled:
                raise PreconditionFailed(
                    f"invalid arg '{argument}'{where}: it is the same as {spelled[name]}, which is there too"
                )
            known[name] = value
            spelled[name] = argument
            continue
        plain = value.decode(errors="replace") if isinstance(value, bytes) else value
        harmless = HARMLESS_ARGUMENTS.get(argument)
        if harmless is not None and any(plain == allowed and type(plain) is type(allowed) for allowed in harmless):
            continue
        if harmless is not None or argument in _LATER_ARGUMENTS:
            allowed_text = f", which allows {', '.join(map(repr, harmless))}" if harmless else ""
            raise PreconditionFailed(
                f"invalid arg '{argument}'{where}: {plain!r} is not supported in this version{allowed_text}"
            )
    if over_amqp and "fairness_model" not in known:
        known["fairness_model"] = "round-robin"
    try:
        return read_queue_settings(known, "amqp", lambda name: spelled.get(name) or argument_name(name))
    except BadValue as bad:
        raise PreconditionFailed(f"invalid arg '{bad.key}'{where}: {bad}") from None


def given_arguments(arguments: Mapping[str, object]) -> frozenset[str]:
    """Names of the settings that the arguments of a `queue.declare` give."""
    return frozenset([_BY_ARGUMENT[argument] for argument in arguments if argument in _BY_ARGUMENT])


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
    values: Mapping[str, object], queue: str = "", base: QueueSettings | None = None
) -> QueueSettings:
    """The settings that keyword arguments ask for: snake case; durations as text, seconds or timedelta.

    None stands for the default of a key.  `base` gives what is not named (altering a queue).  Raises InvalidArgument
    for an unknown key, with the nearest known one, and for a value that its key does not take.
    """
    values = {KEY_ALIASES.get(name, name): value for name, value in values.items()}
    for name, value in values.items():
        if name != MESSAGE_TYPE:
            refuse_unknown(name, queue)
        elif value is not None and (why := wrong_type(value)):
            raise InvalidArgument(f"{name} of queue {queue!r} is {why}")
    known = {name: value for name, value in values.items() if name != MESSAGE_TYPE}
    try:
        return read_queue_settings(known, "python", base=base)
    except BadValue as bad:
        raise InvalidArgument(f"{bad.key} of queue {queue!r}: {bad}") from None


def refuse_unknown(name: str, queue: str) -> None:
    """Raise InvalidArgument unless `name` is a setting of a queue in this version."""
    if name in LATER_QUEUE_KEYS:
        raise InvalidArgument(f"{name} of queue {queue!r} is not supported in this version")
    if name not in QUEUE_KEYS:
        raise InvalidArgument(f"{name!r} is no setting of a queue{known_name(name, QUEUE_KEYS)}")
