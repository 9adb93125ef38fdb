"""Why a queue or an exchange cannot be declared as asked, in the texts that AMQP clients know and some compare."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager

from penstock.core.topology.topology import canonical_table
from penstock.errors import AccessRefused, ExpressionError, NotFound, PreconditionFailed, ResourceLocked
from penstock.expr import TopicPattern, compile_filter, compile_value
from penstock.records.field_tables import Timestamp
from penstock.records.queue_settings import QueueSettings


def check_settings(vhost: str, name: str, settings: QueueSettings) -> None:
    """Refuse settings that cannot hold together.  ExpressionError for a filter that cannot be read."""
    where = f"queue '{name}' in vhost '{vhost}'"
    if settings.underlying_topic:
        try:
            pattern = TopicPattern(settings.underlying_topic)
        except ValueError as error:
            raise bad_argument("underlying_topic", where, error) from error
        target = settings.default_publish_target
        if target is None and not pattern.literal:
            raise bad_argument("default_publish_target", where, "a pattern of topics needs one")
        if target is not None and not pattern.matches(target):
            raise bad_argument("default_publish_target", where, f"'{target}' is not among its underlying topics")
    if settings.dead_letter_routing_key is not None and settings.dead_letter_exchange is None:
        raise bad_argument("x-dead-letter-routing-key", where, "routing_key_but_no_dlx_defined")
    if settings.semantics == "at-most-once" and settings.fairness_model != "round-robin":
        raise bad_argument("fairness_model", where, "at-most-once queues know round-robin alone")
    check_expressions(where, settings)


def check_expressions(where: str, settings: QueueSettings) -> None:
    """Refuse expressions that cannot be read, or say another thing of a message at another time.

    where: whose they are, for the message.
    """
    if settings.filter:
        with _naming("filter", where):
            deterministic = compile_filter(settings.filter).deterministic
        if not deterministic:
            raise bad_argument("filter", where, "a queue's filter must say the same of a message at any time")
    if settings.priority_expression is not None:
        with _naming("priority_expression", where):
            compile_value(settings.priority_expression).require_deterministic("a priority expression")
    for key, what in (
        ("group_key", "a group key"),
        ("fairness_key", "a fairness key"),
        ("last_value_key", "the key of a last value"),
        ("dedup_key", "the key of duplicates"),
    ):
        if (text := getattr(settings, key)) is not None:
            with _naming(key, where):
                compile_value(text).require_deterministic(what)
    if settings.barrier_expression:
        with _naming("barrier_expression", where):
            compile_filter(settings.barrier_expression).require_deterministic("a barrier expression")


def why_not(
    vhost: str, name: str, settings: QueueSettings, refuse: Callable[[QueueSettings], str | None] | None
) -> str | None:
    """Why a queue cannot have these settings, in words that do not name it; None where it can."""
    if refuse is not None and (why := refuse(settings)) is not None:
        return why
    try:
        check_settings(vhost, name, settings)
    except (ExpressionError, PreconditionFailed) as error:
        where = f"queue '{name}' in vhost '{vhost}'"
        return str(error).replace(f" for {where}", "").replace(f" of {where}", "")
    return None


@contextmanager
def _naming(key: str, where: str) -> Generator[None]:
    """Let an expression that cannot be read say whose it is."""
    try:
        yield
    except ExpressionError as error:
        raise ExpressionError(f"{key} of {where}: {error}", text=error.text, place=error.place) from None


def no_exchange(vhost: str, name: str) -> NotFound:
    """The refusal for a missing exchange."""
    return NotFound(f"no exchange '{name}' in vhost '{vhost}'")


def on_default_exchange() -> AccessRefused:
    """The refusal to touch the default exchange."""
    return AccessRefused("operation not permitted on the default exchange")


def bad_argument(argument: str, where: str, detail: object) -> PreconditionFailed:
    """The refusal of one argument of a declare."""
    return PreconditionFailed(f"invalid arg '{argument}' for {where}: {detail}")


def locked(vhost: str, name: str) -> ResourceLocked:
    """The refusal of a queue that is exclusive to somebody else."""
    return ResourceLocked(
        f"cannot obtain exclusive access to locked queue '{name}' in vhost '{vhost}'. It could be originally declared "
        "on another connection or the exclusive property value does not match that of the original declaration."
    )


def refuse_difference(
    what: str,
    flags: tuple[tuple[str, bool, bool], ...],
    received: Mapping[str, object],
    current: Mapping[str, object],
) -> None:
    """Raise PreconditionFailed at the first difference between a declare and what is there."""
    for name, mine, theirs in flags:
        if mine != theirs:
            raise PreconditionFailed(
                f"inequivalent arg '{name}' for {what}: received '{_word(mine)}' but current is '{_word(theirs)}'"
            )
    for name in sorted({*received, *current}):
        if name not in current:
            text = f"received {_described(received[name])} but current is none"
        elif name not in received:
            text = f"received none but current is {_described(current[name])}"
        elif canonical_table({"": received[name]}) == canonical_table({"": current[name]}):
            continue
        else:
            text = f"received '{_word(received[name])}' but current is '{_word(current[name])}'"
        raise PreconditionFailed(f"inequivalent arg '{name}' for {what}: {text}")


def _described(value: object) -> str:
    return f"the value '{_word(value)}' of type '{_type_name(value)}'"


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _type_name(value: object) -> str:
    match value:
        case bool():
            return "bool"
        case Timestamp():
            return "timestamp"
        case int():
            return "signedint" if -(2**31) <= value < 2**31 else "long"
        case float():
            return "double"
        case str():
            return "longstr"
        case bytes():
            return "binary"
        case list() | tuple():
            return "array"
        case dict():
            return "table"
        case None:
            return "void"
        case _:
            return type(value).__name__
