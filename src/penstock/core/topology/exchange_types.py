"""How exchanges route: for each type the form of its bindings that is searched fastest, and what may be declared.

    direct              the key of a binding is the message's
    fanout              to all
    topic               by words: `*` is exactly one, `#` none or more
    headers             by the message's headers
    x-consistent-hash   to one of all, by a hash; the key of a binding is its weight, how large its share is
    x-modulus-hash      to one of all, by a hash; equal shares

A hash is taken of the routing key; `hash-header` names a header that stands for it.  Consistent: when an end comes or
goes, only what it takes or leaves behind changes its way.  Who shares a hash reads the same from run to run and from
machine to machine; which end took a message stands in the log all the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import blake2b
from math import log
from typing import TypeAlias, cast

from penstock.core.state.durable import Binding, ExchangeState
from penstock.core.topology.topology import DELAYED, routing_type, table_of
from penstock.errors import PreconditionFailed
from penstock.records.field_tables import FieldValue

Headers: TypeAlias = "Mapping[str, FieldValue]"
End: TypeAlias = "tuple[str, str]"  # ("queue" or "exchange", name)

HASH_HEADER = "hash-header"


class Index(ABC):
    """The bindings of one exchange."""

    by_headers: bool = False  # whether headers have a say in where a message goes

    @abstractmethod
    def add(self, binding: Binding) -> None:
        """One more binding."""

    @abstractmethod
    def ends(self, key: str, headers: Headers) -> Iterable[End]:
        """Where the bindings lead for one key and one table of headers; one may come more than once."""


class KeyTrie:
    """Topic bindings by words: `*` is exactly one word, `#` zero or more; both only as whole words."""

    __slots__ = ("ends", "words")

    def __init__(self) -> None:
        self.words: dict[str, KeyTrie] = {}
        self.ends: dict[End, None] = {}

    def add(self, key: str, end: End) -> None:
        node = self
        for word in _words(key):
            node = node.words.setdefault(word, KeyTrie())
        node.ends[end] = None

    def find(self, key: str) -> Iterator[End]:
        """Ends of all binding keys that match; one may come more than once."""
        words = _words(key)
        size = len(words)
        seen = set[tuple[int, int]]()
        todo: list[tuple[KeyTrie, int]] = [(self, 0)]
        while todo:
            node, i = todo.pop()
            if (id(node), i) in seen:
                continue
            seen.add((id(node), i))
            if i == size:
                yield from node.ends
            else:
                if (literal := node.words.get(words[i])) is not None and words[i] not in ("*", "#"):
                    todo.append((literal, i + 1))
                if (star := node.words.get("*")) is not None:
                    todo.append((star, i + 1))
            if (some := node.words.get("#")) is not None:
                todo += ((some, j) for j in range(i, size + 1))


def _words(key: str) -> list[str]:
    return key.split(".") if key else []


class HeaderRule:
    """One binding of a headers exchange."""

    __slots__ = ("any", "end", "wanted")

    def __init__(self, binding: Binding) -> None:
        arguments = table_of(binding.arguments)
        how = arguments.pop("x-match", "all")
        self.any = how in ("any", "any-with-x")
        with_x = how in ("all-with-x", "any-with-x")
        self.wanted = {name: value for name, value in arguments.items() if with_x or not name.startswith("x-")}
        self.end: End = (binding.destination_type, binding.destination)

    def matches(self, headers: Headers) -> bool:
        """Values compare by type and value; a void one asks for presence alone."""
        hits = (name in headers and _same(value, headers[name]) for name, value in self.wanted.items())
        return any(hits) if self.any else all(hits)


def _same(wanted: FieldValue, found: FieldValue) -> bool:
    return wanted is None or (type(wanted) is type(found) and wanted == found)


class _Direct(Index):
    def __init__(self) -> None:
        self._keys: dict[str, dict[End, None]] = {}

    def add(self, binding: Binding) -> None:
        self._keys.setdefault(binding.key, {})[end_of(binding)] = None

    def ends(self, key: str, headers: Headers) -> Iterable[End]:
        return self._keys.get(key, ())


class _Fanout(Index):
    def __init__(self) -> None:
        self._all: dict[End, None] = {}

    def add(self, binding: Binding) -> None:
        self._all[end_of(binding)] = None

    def ends(self, key: str, headers: Headers) -> Iterable[End]:
        return self._all


class _Topic(Index):
    def __init__(self) -> None:
        self._trie = KeyTrie()

    def add(self, binding: Binding) -> None:
        self._trie.add(binding.key, end_of(binding))

    def ends(self, key: str, headers: Headers) -> Iterable[End]:
        return self._trie.find(key)


class _Headers(Index):
    def __init__(self) -> None:
        self._rules: list[HeaderRule] = []

    def add(self, binding: Binding) -> None:
        self._rules.append(HeaderRule(binding))
        self.by_headers = True

    def ends(self, key: str, headers: Headers) -> Iterable[End]:
        return (rule.end for rule in self._rules if rule.matches(headers))


class _Hash(Index):
    """One of all ends, by what a message's hash and the weights say; `choose` is of the type."""

    def __init__(self, arguments: Headers, choose: Callable[[str, Mapping[End, int]], End]) -> None:
        self._weights: dict[End, int] = {}
        self._header = arguments.get(HASH_HEADER)
        self._choose = choose
        self.by_headers = self._header is not None

    def add(self, binding: Binding) -> None:
        end, weight = end_of(binding), int(binding.key) if binding.key.isdecimal() else 1
        self._weights[end] = self._weights.get(end, 0) + weight

    def ends(self, key: str, headers: Headers) -> Iterable[End]:
        if not self._weights:
            return ()
        text = key if self._header is None else repr(headers.get(str(self._header)))
        return (self._choose(text, self._weights),)


def _consistent(text: str, weights: Mapping[End, int]) -> End:
    """Rendezvous hashing: each end draws by the message's hash and its own name, and the highest takes it."""

    def drawn(end: End) -> float:
        return weights[end] / -log(((_hash(f"{text}\0{end[0]}\0{end[1]}") >> 12) + 0.5) / 2**52)

    return max(sorted(weights), key=drawn)


def _modulus(text: str, weights: Mapping[End, int]) -> End:
    return sorted(weights)[_hash(text) % len(weights)]


def _hash(text: str) -> int:
    """64 bits that any machine gets of the same text."""
    return int.from_bytes(blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest(), "big")


_INDEXES: Mapping[str, Callable[[Headers], Index]] = {
    "direct": lambda _: _Direct(),
    "fanout": lambda _: _Fanout(),
    "topic": lambda _: _Topic(),
    "headers": lambda _: _Headers(),
    "x-consistent-hash": lambda arguments: _Hash(arguments, _consistent),
    "x-modulus-hash": lambda arguments: _Hash(arguments, _modulus),
}
"""All types but the one that delays, which routes as one of these."""


def index_of(exchange: ExchangeState, bindings: Iterable[Binding]) -> Index:
    """What finds the ends of an exchange with these bindings."""
    index = _INDEXES[routing_type(exchange)](cast("Headers", exchange.arguments))
    for binding in bindings:
        index.add(binding)
    return index


def end_of(binding: Binding) -> End:
    """Where a binding leads."""
    return binding.destination_type, binding.destination


_X_MATCH = ("all", "any", "all-with-x", "any-with-x")


def check_binding(exchange: ExchangeState, key: str, arguments: Mapping[str, object]) -> None:
    """Raise PreconditionFailed, in RabbitMQ's words, for a binding that an exchange of this type cannot have."""
    match routing_type(exchange):
        case "headers" if (how := arguments.get("x-match", "all")) not in _X_MATCH:
            raise PreconditionFailed(f"Invalid x-match field value {how!r}; expected one of {', '.join(_X_MATCH)}")
        case "x-consistent-hash":
            if not (key.isdecimal() and key.isascii() and len(key) <= _WEIGHT_DIGITS):
                raise PreconditionFailed(f"The binding key must be an integer: {key!r}")
            if int(key) < 1:
                raise PreconditionFailed("The binding key must be greater than 0")
        case _:
            pass


_WEIGHT_DIGITS = 9


def check_type(where: str, kind: str, arguments: Mapping[str, object]) -> None:
    """Raise PreconditionFailed for arguments of an exchange that its type does not take.  where: whose they are."""
    if kind == DELAYED:
        kind = str(arguments.get("x-delayed-type"))
        if kind not in _INDEXES:
            raise PreconditionFailed(
                f"invalid arg 'x-delayed-type' for {where}: one of {', '.join(_INDEXES)} is needed, not "
                f"{arguments.get('x-delayed-type')!r}"
            )
    if kind.endswith("-hash"):
        if "hash-property" in arguments:
            raise PreconditionFailed(
                f"invalid arg 'hash-property' for {where}: it is not supported in this version; use '{HASH_HEADER}'"
            )
        if HASH_HEADER in arguments and not isinstance(arguments[HASH_HEADER], str):
            raise PreconditionFailed(f"invalid arg '{HASH_HEADER}' for {where}: {arguments[HASH_HEADER]!r} is not text")
