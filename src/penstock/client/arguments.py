"""What callers give: text where a call asks for text, numbers where for numbers; and the settings of a queue.

Who gives a number for a queue's name hears it at once, and where he gave it.

What an argument is the signature says: a word of `_KINDS`, or several.  It is read once, as the class is made; a call
that has no such argument costs nothing, any other a look at each of them.  Refuses with InvalidArgument before anything
is done or sent: also half a pair of surrogates, which no UTF-8 has, a truth where a number is asked for, and a number
that is none or infinite.  What else a value may be, the server says.

The settings of a queue are as type checkers and editors see them: `declare("q", lease_periode="30s")` is an error.
Their names are those of the settings file, whose page is docs/settings.md; what a value may be beyond its type the
server says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from functools import wraps
from math import isfinite
from numbers import Integral, Real
from types import FunctionType
from typing import Any, Final, TypedDict, TypeVar, cast

from penstock.errors import InvalidArgument
from penstock.records.declared_types import TypeName
from penstock.records.message_types import MessageType
from penstock.records.queue_settings import (
    Deliver,
    ExpirationModel,
    FairnessModel,
    Leasing,
    Overflow,
    Semantics,
    Sharing,
    WithoutSubscribers,
)
from penstock.units import Duration

T = TypeVar("T")

NEVER = 1 << 30
"""The place of an argument that is given by its name alone."""

OURS: Final = ("penstock.client.", "penstock.faststream.")
"""Whose classes are looked at where a signature asks for them."""

_COROUTINE, _VARARGS = 0x80, 0x04  # `inspect.CO_COROUTINE`, `CO_VARARGS`: that module takes long to load
_UNWRITTEN: Final = "which is no text in UTF-8"


def is_written(text: str) -> bool:
    """Whether it has a form in UTF-8."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_text(value: object) -> bool:
    return isinstance(value, str) and is_written(value)


def _are_texts(value: object) -> bool:
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | bytearray):
        return False
    return not isinstance(value, list | tuple) or all(map(_is_text, cast("list[object]", value)))


def _is_whole(value: object) -> bool:
    return type(value) is int or (not isinstance(value, bool) and isinstance(value, Integral))


def _is_number(value: object) -> bool:
    return _is_whole(value) or (not isinstance(value, bool) and isinstance(value, Real) and isfinite(value))


def _of(*kinds: type) -> Callable[[object], bool]:
    return lambda value: isinstance(value, kinds)


_SEVERAL: Final = "Sequence[str]"
_KINDS: Final[dict[str, tuple[Callable[[object], bool], str]]] = {
    "str": (_is_text, "text"),
    _SEVERAL: (_are_texts, "a sequence of texts"),
    "bytes": (_of(bytes), "bytes"),
    "int": (_is_whole, "a whole number"),
    "float": (_is_number, "a finite number"),
    "bool": (_of(bool), "True or False"),
    "datetime": (_of(datetime), "a datetime"),
    "timedelta": (_of(timedelta), "a timedelta"),
    "Mapping[str, object]": (_of(Mapping), "names with their values"),
    "Arguments": (_of(Mapping), "names with their values"),
    "Callable": (callable, "a function"),
    "None": (lambda value: value is None, "None"),
}
"""The words of a signature that are looked at: what a value has to be, and how that is said.  Our classes follow."""


def arguments_checked(thing: T) -> T:
    """A class whose public methods refuse what is not of the kind that they ask for; or such a function."""
    if isinstance(thing, FunctionType):
        return cast("T", _checked(thing))
    for name, method in list(vars(thing).items()):
        if isinstance(method, FunctionType) and (name == "__init__" or not name.startswith("_")):
            checked = _checked(method)
            if checked is not method:
                setattr(thing, name, checked)
    return thing


def _checked(function: FunctionType) -> Callable[..., Any]:
    made = function.__name__ == "__init__"
    known = {} if made else function.__globals__
    kinds = {
        name: kind for name, said in function.__annotations__.items() if (kind := _kind(name, said, known)) is not None
    }
    if not kinds or (made and not any("str" in kind for kind in kinds.values())):  # messages, by us, by the thousand
        return function
    code = getattr(function, "__wrapped__", function).__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    by_place = code.co_argcount
    places = [(at if at < by_place else NEVER, name, kinds[name]) for at, name in enumerate(names) if name in kinds]
    owner = function.__qualname__.rpartition(".")[0].rpartition(".")[2]
    who = owner if made else function.__name__

    more = code.co_varnames[len(names)] if code.co_flags & _VARARGS else ""  # *more: each of them
    rest = kinds.get(more)

    def check(args: tuple[object, ...], given: dict[str, object]) -> None:
        count = len(args)
        for at, name, kind in places:
            if at < count:
                value = args[at]
            elif name in given:
                value = given[name]
            else:
                continue
            if not _fits(value, kind):
                raise _refused(who, name, value, kind)
        if rest is not None:
            for value in args[by_place:]:
                if not _fits(value, rest):
                    raise _refused(who, more, value, rest)

    if code.co_flags & _COROUTINE:

        async def later(*args: Any, **given: Any) -> Any:
            check(args, given)
            return await function(*args, **given)

        return wraps(function)(later)

    def now(*args: Any, **given: Any) -> Any:
        check(args, given)
        return function(*args, **given)

    return wraps(function)(now)


def _kind(name: str, said: object, known: Mapping[str, object]) -> tuple[str, ...] | None:
    """What an argument may be; None: that is not for us to say.  known: where its classes are found."""
    if name == "return" or not isinstance(said, str) or said == "None":
        return None
    if said.startswith("Callable[") and said.endswith("] | None"):
        return ("Callable", "None")
    kind = tuple(one if one in _KINDS else _class(known.get(one)) for one in said.split(" | "))
    return kind if all(one in _KINDS for one in kind) else None


def _class(found: object) -> str:
    """The word for a class of `OURS`, which is looked at from then on; empty for any other, and for a protocol."""
    if not isinstance(found, type) or not found.__module__.startswith(OURS) or getattr(found, "_is_protocol", False):
        return ""
    word = f"{found.__module__}.{found.__name__}"
    _KINDS.setdefault(word, (_of(found), f"a {found.__name__}"))
    return word


def _fits(value: object, kind: tuple[str, ...]) -> bool:
    return any(_KINDS[one][0](value) for one in kind)


def encoded(text: str, what: str) -> bytes:
    """Text in UTF-8.  InvalidArgument, which names `what` it is, for half a pair of surrogates."""
    if not is_written(text):
        raise InvalidArgument(f"{what} is {_shown(text)}, {_UNWRITTEN}")
    return text.encode()


def _refused(who: str, name: str, value: object, kind: tuple[str, ...]) -> InvalidArgument:
    """By the argument's name, with its value, or of a sequence the first that is no text, and the type of that."""
    many = ""
    if _SEVERAL in kind and isinstance(value, list | tuple):
        value, many = next(one for one in cast("list[object]", value) if not _is_text(one)), "a sequence with "
    told = f"{who}: {name} is {many}{_shown(value)}"
    if isinstance(value, str) and not is_written(value) and ("str" in kind or _SEVERAL in kind):
        return InvalidArgument(f"{told}, {_UNWRITTEN}")
    words = " or ".join(_KINDS[one][1] for one in sorted(kind, key=list(_KINDS).index) if one != "None")
    none = " or None" if "None" in kind else ""
    of = type(value)
    named = f"{of.__module__}.{of.__name__}" if of.__module__.startswith("penstock.") else of.__name__
    return InvalidArgument(f"{told}, not {words}{none}: that is of type {named}")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."


class RetryOptions(TypedDict, total=False):
    """Back-off of failed messages."""

    initial: Duration
    factor: float
    max: Duration
    jitter: float
    attempts: int


class KeyedCount(TypedDict, total=False):
    """A number for the whole queue, and one for each tenant."""

    queue: int
    key: int


class KeyedRate(TypedDict, total=False):
    """`100/s` for the whole queue, and for each tenant."""

    queue: str
    key: str


class QueueOptions(TypedDict, total=False):
    """Every setting that a queue may have; None is its default."""

    underlying_topic: str | None
    exchange: str | None
    default_publish_target: str | None
    filter: str | None
    semantics: Semantics | None
    lease_period: Duration | None
    leasing: Leasing | None
    max_backlog: int | None
    max_per_subscription_backlog: int | None
    fairness_model: FairnessModel | None
    max_deliveries: int | None
    max_cancels: int | None
    delivery_limit: int | None
    retry: RetryOptions | None
    expiration: Duration | None
    expiration_model: ExpirationModel | None
    message_ttl: Duration | None
    dead_letter_exchange: str | None
    dead_letter_routing_key: str | None
    expiry_address: str | None
    deliver: Deliver | None
    deferred_ack_expiration: Duration | None
    barrier_expression: str | None
    barrier_without_subscribers: WithoutSubscribers | None
    priority_expression: str | None
    max_priority: int | None
    priority_ageing: Duration | None
    target_queue_depth: int | None
    group_key: str | None
    fairness_key: str | None
    weights: Mapping[str, float] | None
    max_leased: int | KeyedCount | None
    rate_limit: str | KeyedRate | None
    dedup_key: str | None
    dedup_window: Duration | None
    unique: bool | None
    file_backed_metadata: bool | str | None
    recovery_point: str | None
    single_active_consumer: bool | None
    max_consumers: int | None
    consumers_before_dispatch: int | None
    delay_before_dispatch: Duration | None
    purge_on_no_consumers: bool | None
    non_destructive: bool | None
    last_value_key: str | None
    queue_expires: Duration | None
    consumer_timeout: Duration | None
    queue_type: TypeName | None
    message_type: MessageType | None
    kind: Sharing | None
    initial_owner: str | None
    group_local_queue_domain: str | None
    max_length: int | None
    max_length_bytes: str | int | None
    overflow: Overflow | None
    ring_size: int | None
    expires: Duration | None
