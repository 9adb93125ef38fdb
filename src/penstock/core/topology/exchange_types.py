"""How exchanges route: for each type the form of its bindings that is searched fastest, and what may be declared.

    direct              the key of a binding is the message's
    fanout              to all
    topic               by words: `*` is exactly one, `#` none or more
    headers             by the message's headers
    x-consistent-hash   to one of all, by a hash; the key of a binding is its weight, how large its share is
    x-modulus-hash      to one of all, by a hash; equal shares
    x-super-stream      to the one whose key is the number that the stream protocol's clients get of the routing key
    x-random            to one of all, by chance
    x-recent-history            to all, and who is bound later gets the last messages, too
    x-message-deduplication     to all, what does not say `x-deduplication-header` of one that came before

A hash is taken of the routing key; `hash-header` names a header that stands for it, `hash-property` a property.
Consistent: when an end comes or goes, only what it takes or leaves behind changes its way.  Who shares a hash reads the
same from run to run and from machine to machine; which end took a message stands in the log all the same.

A type is a class: it checks what is declared, and says what of a message it asks and what a binding lets through.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from math import log
from typing import ClassVar, Literal, TypeAlias, cast

from penstock.core.state.durable import Binding, ExchangeState
from penstock.core.topology.searching import End, Ends, HeaderRule, HeaderRules, Headers, KeyTrie, end_of
from penstock.core.topology.topology import (
    CACHE_PERSISTENCE,
    CACHE_SIZE,
    CACHE_TTL,
    DEDUPLICATION_HEADER,
    DELAYED,
    HISTORY_LENGTH,
    NO_STORE,
    RECENT,
    SEEN,
    OwnQueue,
    routing_type,
)
from penstock.errors import InvalidArgument
from penstock.records import properties as header_codec
from penstock.records.field_tables import FieldValue

HASH_HEADER, HASH_PROPERTY = "hash-header", "hash-property"

EXCHANGE_ARGUMENTS = frozenset(
    {"alternate-exchange", "x-delayed-type", "x-super-stream", HASH_HEADER, HASH_PROPERTY, HISTORY_LENGTH}
    | {CACHE_SIZE, CACHE_TTL, CACHE_PERSISTENCE}
)
"""What an `exchange.declare` may say, of any type of exchange; another argument has no effect."""

Passes: TypeAlias = Literal["key", "words", "all", "headers", "shared"]
"""What a binding lets through: one key, keys of some words, all, what has some headers, or a share of the keys."""


class Told(dict[str, FieldValue]):
    """What routing may know of one message beside its key: headers, properties, and what chance has drawn for it."""

    __slots__ = ("_data", "draw")

    def __init__(self, headers: Headers | None, data: bytes = b"", draw: float | None = None) -> None:
        """data: the encoded header.  draw: from 0 to below 1; None: nothing is drawn, and all that may be counts."""
        super().__init__(headers or {})
        self._data = data
        self.draw = draw

    def property(self, name: str) -> object:
        """A basic property; None without it."""
        return getattr(header_codec.decode(self._data), name) if self._data else None


class Index(ABC):
    """The bindings of one exchange."""

    passes: ClassVar[Passes] = "key"
    by_headers: bool = False  # whether more than its key has a say in where a message goes
    by_chance: bool = False  # whether chance has, so that no two messages are alike
    own: ClassVar[OwnQueue | None] = None  # a queue of the exchange itself, in which it puts what it remembers

    @abstractmethod
    def __init__(self, arguments: Headers) -> None:
        """arguments: of the exchange."""

    @abstractmethod
    def add(self, binding: Binding) -> None:
        """One more binding begins at this exchange."""

    @abstractmethod
    def remove(self, binding: Binding) -> None:
        """One of those that were added is gone."""

    @abstractmethod
    def ends(self, key: str, headers: Headers) -> Iterable[End]:
        """Where the bindings lead for one key and one table of headers; one may come more than once."""

    def remembers(self, headers: Headers) -> bool:
        """Whether a message with these headers enters the exchange's own queue."""
        return False

    @classmethod
    def check(cls, where: str, arguments: Mapping[str, object]) -> None:
        """Raise InvalidArgument for arguments that an exchange of this type does not take."""
        if cls.own is not None:
            cls.own.settings(arguments)

    @classmethod  # noqa: B027 - most types take anything
    def check_binding(cls, key: str, arguments: Mapping[str, object]) -> None:
        """Raise InvalidArgument, in RabbitMQ's words, for a binding that such an exchange cannot have."""


class _Direct(Index):
    def __init__(self, arguments: Headers) -> None:
        self._keys: dict[str, Ends] = {}

    def add(self, binding: Binding) -> None:
        self._keys.setdefault(binding.key, Ends()).put(end_of(binding))

    def remove(self, binding: Binding) -> None:
        _drop(self._keys, binding)

    def ends(self, key: str, headers: Headers) -> Iterable[End]:
        return self._keys.get(key, ())


def _drop(keys: dict[str, Ends], binding: Binding) -> None:
    keys[binding.key].drop(end_of(binding))
    if not keys[binding.key]:
        del keys[binding.key]


class _Fanout(Index):
    passes = "all"

    def __init__(self, arguments: Headers) -> None:
        self._all = Ends()

    def add(self, binding: Binding) -> None:
        self._all.put(end_of(binding))

    def remove(self, binding: Binding) -> None:
        self._all.drop(end_of(binding))

    def ends(self, key: str, headers: Headers) -> Iterable[End]:
        return self._all


class _Random(_Fanout):
    by_headers = by_chance = True

    def ends(self, key: str, headers: Headers) -> Iterable[End]:
        draw = headers.draw if isinstance(headers, Told) else None
        if draw is None:
            return self._all
        some = list(self._all)
        return some[int(draw * len(some)) :][:1]


class _Recent(_Fanout):
    by_headers = True
    own = RECENT

    def remembers(self, headers: Headers) -> bool:
        return headers.get(NO_STORE) is not True


class _Deduplicating(_Fanout):
    by_headers = True
    own = SEEN

    def remembers(self, headers: Headers) -> bool:
        return DEDUPLICATION_HEADER in headers


class _Topic(Index):
    passes = "words"

    def __init__(self, arguments: Headers) -> None:
        self._trie = KeyTrie()

    def add(self, binding: Binding) -> None:
        self._trie.add(binding.key, end_of(binding))

    def remove(self, binding: Binding) -> None:
        self._trie.remove(binding.key, end_of(binding))

    def ends(self, key: str, headers: Headers) -> Iterable[End]:
        return self._trie.find(key)


_X_MATCH = ("all", "any", "all-with-x", "any-with-x")


class _Headers(Index):
    passes = "headers"

    def __init__(self, arguments: Headers) -> None:
        self._rules = HeaderRules()

    def add(self, binding: Binding) -> None:
        self._rules.add(HeaderRule(binding))
        self.by_headers = True

    def remove(self, binding: Binding) -> None:
        self._rules.remove(binding)

    def ends(self, key: str, headers: Headers) -> Iterable[End]:
        return self._rules.find(headers)

    @classmethod
    def check_binding(cls, key: str, arguments: Mapping[str, object]) -> None:
        if (how := arguments.get("x-match", "all")) not in _X_MATCH:
            raise InvalidArgument(f"Invalid x-match field value {how!r}; expected one of {', '.join(_X_MATCH)}")


HASHED_PROPERTIES = ("correlation_id", "message_id", "timestamp")
"""Properties that `hash-property` may name, as in RabbitMQ."""


class _Hash(Index):
    """One of all ends, by what a message's hash and the weights say."""

    passes = "shared"

    def __init__(self, arguments: Headers) -> None:
        self._ends = Ends()
        self._weights: dict[End, int] = {}
        self._order: list[tuple[End, int, bytes]] | None = None  # the same and their names as bytes, in one order
        self._header, self._property = arguments.get(HASH_HEADER), arguments.get(HASH_PROPERTY)
        self.by_headers = self._header is not None or self._property is not None

    @abstractmethod
    def choose(self, text: str, order: list[tuple[End, int, bytes]]) -> End:
        """The one that takes what has this text.  order: ends, with their weights and their names as bytes."""

    def add(self, binding: Binding) -> None:
        end = end_of(binding)
        self._ends.put(end)
        self._weights[end] = self._weights.get(end, 0) + _weight(binding)
        self._order = None

    def remove(self, binding: Binding) -> None:
        end = end_of(binding)
        self._ends.drop(end)
        self._weights[end] -= _weight(binding)
        if end not in self._ends:
            del self._weights[end]
        self._order = None

    def ends(self, key: str, headers: Headers) -> Iterable[End]:
        if not self._weights:
            return ()
        if self._order is None:
            weights = sorted(self._weights.items())
            self._order = [(end, weight, _encoded(f"{end[0]}\0{end[1]}")) for end, weight in weights]
        return (self.choose(self._hashed(key, headers), self._order),)

    def _hashed(self, key: str, headers: Headers) -> str:
        if self._property is not None:
            return repr(headers.property(str(self._property)) if isinstance(headers, Told) else None)
        return key if self._header is None else repr(headers.get(str(self._header)))

    @classmethod
    def check(cls, where: str, arguments: Mapping[str, object]) -> None:
        if HASH_HEADER in arguments and HASH_PROPERTY in arguments:
            raise InvalidArgument(f"invalid args for {where}: {HASH_HEADER} and {HASH_PROPERTY} are mutually exclusive")
        if HASH_HEADER in arguments and not isinstance(arguments[HASH_HEADER], str):
            raise InvalidArgument(f"invalid arg '{HASH_HEADER}' for {where}: {arguments[HASH_HEADER]!r} is not text")
        if HASH_PROPERTY in arguments and arguments[HASH_PROPERTY] not in HASHED_PROPERTIES:
            raise InvalidArgument(
                f"invalid arg '{HASH_PROPERTY}' for {where}: Unsupported property: {arguments[HASH_PROPERTY]!r}; "
                f"one of {', '.join(HASHED_PROPERTIES)}"
            )


class _Consistent(_Hash):
    """Rendezvous hashing: each end draws by the message's hash and its own name, and the highest takes it."""

    def choose(self, text: str, order: list[tuple[End, int, bytes]]) -> End:
        begun = blake2b(_encoded(f"{text}\0"), digest_size=8)

        def drawn(one: tuple[End, int, bytes]) -> float:
            found = begun.copy()
            found.update(one[2])
            return one[1] / -log(((_number(found.digest()) >> 12) + 0.5) / 2**52)

        return max(order, key=drawn)[0]

    @classmethod
    def check_binding(cls, key: str, arguments: Mapping[str, object]) -> None:
        if not _is_number(key.removeprefix("-")):
            raise InvalidArgument(f"The binding key must be an integer: {key!r}")
        if int(key) < 1:
            raise InvalidArgument("The binding key must be greater than 0")
        if int(key) > _WEIGHT_MOST:
            raise InvalidArgument(f"The binding key must be {_WEIGHT_MOST} at most: {key!r}")


class _Modulus(_Hash):
    def choose(self, text: str, order: list[tuple[End, int, bytes]]) -> End:
        return order[_hash(text) % len(order)][0]


class _SuperStream(Index):
    """Partitions by number: clients of the stream protocol come to the same one.  Source: RabbitMQ's Java client."""

    passes = "shared"

    def __init__(self, arguments: Headers) -> None:
        self._bindings = 0
        self._keys: dict[str, Ends] = {}

    def add(self, binding: Binding) -> None:
        self._bindings += 1
        self._keys.setdefault(binding.key, Ends()).put(end_of(binding))

    def remove(self, binding: Binding) -> None:
        self._bindings -= 1
        _drop(self._keys, binding)

    def ends(self, key: str, headers: Headers) -> Iterable[End]:
        if not self._bindings:
            return ()
        return self._keys.get(str(murmur3(key.encode(errors="surrogatepass"), _STREAM_SEED) % self._bindings), ())

    @classmethod
    def check_binding(cls, key: str, arguments: Mapping[str, object]) -> None:
        if not _is_number(key):
            raise InvalidArgument(f"The binding key must be an integer: {key!r}")


def _weight(binding: Binding) -> int:
    return int(binding.key) if binding.key.isdecimal() else 1


_WEIGHT_MOST = 999_999_999

_STREAM_SEED = 104729
"""What clients of the stream protocol begin their hash with."""

_WORD = (1 << 32) - 1


def _is_number(key: str) -> bool:
    return key.isdecimal() and key.isascii()


def _hash(text: str) -> int:
    """64 bits that any machine gets of the same text."""
    return _number(blake2b(_encoded(text), digest_size=8).digest())


def _encoded(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def _number(digest: bytes) -> int:
    return int.from_bytes(digest, "big")


def murmur3(data: bytes, seed: int) -> int:
    """MurmurHash3 for x86, 32 bits.  Source: Austin Appleby's, in the public domain."""
    whole, found = len(data) & ~3, seed
    for at in range(0, len(data), 4):
        mixed = int.from_bytes(data[at : at + 4], "little") * 0xCC9E2D51 & _WORD
        found ^= _turned(mixed, 15) * 0x1B873593 & _WORD
        if at < whole:
            found = (_turned(found, 13) * 5 + 0xE6546B64) & _WORD
    found ^= len(data)
    found = (found ^ found >> 16) * 0x85EBCA6B & _WORD
    found = (found ^ found >> 13) * 0xC2B2AE35 & _WORD
    return found ^ found >> 16


def _turned(value: int, by: int) -> int:
    return (value << by | value >> 32 - by) & _WORD


_TYPES: Mapping[str, type[Index]] = {
    "direct": _Direct,
    "fanout": _Fanout,
    "topic": _Topic,
    "headers": _Headers,
    "x-consistent-hash": _Consistent,
    "x-modulus-hash": _Modulus,
    "x-super-stream": _SuperStream,
    "x-random": _Random,
    "x-recent-history": _Recent,
    "x-message-deduplication": _Deduplicating,
}
"""All types but the one that delays, which routes as one of these."""


def index_of(exchange: ExchangeState, bindings: Iterable[Binding]) -> Index:
    """What finds the ends of an exchange with these bindings."""
    index = _TYPES[routing_type(exchange)](cast("Headers", exchange.arguments))
    for binding in bindings:
        index.add(binding)
    return index


def passes_of(exchange: ExchangeState) -> Passes:
    """What its bindings let through."""
    return _TYPES[routing_type(exchange)].passes


def check_binding(exchange: ExchangeState, key: str, arguments: Mapping[str, object]) -> None:
    """Raise InvalidArgument, in RabbitMQ's words, for a binding that an exchange of this type cannot have."""
    _TYPES[routing_type(exchange)].check_binding(key, arguments)


def check_type(where: str, kind: str, arguments: Mapping[str, object]) -> None:
    """Raise InvalidArgument for arguments of an exchange that its type does not take.  where: whose they are."""
    if kind == DELAYED:
        kind = str(arguments.get("x-delayed-type"))
        if kind not in _TYPES:
            raise InvalidArgument(
                f"invalid arg 'x-delayed-type' for {where}: one of {', '.join(_TYPES)} is needed, not "
                f"{arguments.get('x-delayed-type')!r}"
            )
    _TYPES[kind].check(where, arguments)
