"""Bindings by the words of their keys, and by headers: found without a look at each of them.

Whoever may bind writes patterns, and whoever may publish writes keys and headers; what one of them comes to is bounded
by the words of the bindings, whatever they are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import TypeAlias, cast

from penstock.core.state.durable import Binding
from penstock.core.topology.topology import table_of
from penstock.records.field_tables import FieldValue

Headers: TypeAlias = "Mapping[str, FieldValue]"
End: TypeAlias = "tuple[str, str]"  # ("queue" or "exchange", name)


def end_of(binding: Binding) -> End:
    """Where a binding leads: a queue or an exchange."""
    return binding.destination_type, binding.destination


class Ends(dict[End, int]):
    """Ends, and how many bindings lead to each."""

    __slots__ = ()

    def put(self, end: End) -> None:
        self[end] = self.get(end, 0) + 1

    def drop(self, end: End) -> None:
        """One binding less leads there."""
        if left := self[end] - 1:
            self[end] = left
        else:
            del self[end]


class KeyTrie:
    """Topic bindings by words: `*` is exactly one word, `#` zero or more; both only as whole words."""

    __slots__ = ("ends", "words")

    def __init__(self) -> None:
        self.words: dict[str, KeyTrie] = {}
        self.ends = Ends()

    def add(self, key: str, end: End) -> None:
        node = self
        for word in _in_one_form(_words(key)):
            if (below := node.words.get(word)) is None:
                below = node.words[word] = KeyTrie()
            node = below
        node.ends.put(end)

    def remove(self, key: str, end: End) -> None:
        """The inverse of `add`; what leads nowhere any more goes."""
        path, node = list[tuple[KeyTrie, str]](), self
        for word in _in_one_form(_words(key)):
            path.append((node, word))
            node = node.words[word]
        node.ends.drop(end)
        while path and not node.ends and not node.words:
            node, word = path.pop()
            del node.words[word]

    def find(self, key: str) -> Iterator[End]:
        """Ends of all binding keys that match; one may come more than once.

        Each node is looked at once, with all the places of the key where it may stand: bit i is set where the words
        before it are i of the key's.
        """
        words = _words(key)
        size = len(words)
        everywhere = (2 << size) - 1
        stand: dict[str, int] | None = None
        todo: list[tuple[KeyTrie, int]] = [(self, 1)]
        while todo:
            node, places = todo.pop()
            if places >> size:
                yield from node.ends
            below = node.words
            if not below:
                continue
            if (some := below.get("#")) is not None:
                todo.append((some, -(places & -places) & everywhere))
            on = places << 1 & everywhere
            if on and (star := below.get("*")) is not None:
                todo.append((star, on))
            if not places & (places - 1):  # one place, as mostly
                at = places.bit_length() - 1
                if at < size and (word := words[at]) not in _ANY and (literal := below.get(word)) is not None:
                    todo.append((literal, on))
                continue
            if stand is None:
                stand = _stand(words)
            for word in stand if len(stand) < len(below) else below:
                if (here := places & stand.get(word, 0)) and (literal := below.get(word)) is not None:
                    todo.append((literal, here << 1))


_ANY = ("*", "#")


def _words(key: str) -> list[str]:
    return key.split(".") if key else []


def _in_one_form(words: list[str]) -> Iterator[str]:
    """The same pattern, signs that stand beside each other in one order: however they stood, they are one path."""
    for signs, some in groupby(words, _ANY.__contains__):
        beside = list(some)
        yield from (word for word in beside if not signs or word == "*")
        if signs and "#" in beside:
            yield "#"


def _stand(words: list[str]) -> dict[str, int]:
    """Where each word of a key stands, as bits; what reads as a pattern's sign is no word of any pattern."""
    out = dict[str, int]()
    for at, word in enumerate(words):
        if word not in _ANY:
            out[word] = out.get(word, 0) | 1 << at
    return out


class HeaderRule:
    """One binding of a headers exchange."""

    __slots__ = ("any", "binding", "end", "wanted")

    def __init__(self, binding: Binding) -> None:
        self.binding = binding
        arguments = table_of(binding.arguments)
        how = arguments.pop("x-match", "all")
        self.any = how in ("any", "any-with-x")
        with_x = how in ("all-with-x", "any-with-x")
        self.wanted = {name: value for name, value in arguments.items() if with_x or not name.startswith("x-")}
        self.end: End = end_of(binding)

    def matches(self, headers: Headers) -> bool:
        """Values compare by type and value; a void one asks for presence alone."""
        hits = (name in headers and _same(value, headers[name]) for name, value in self.wanted.items())
        return any(hits) if self.any else all(hits)


def _same(wanted: FieldValue, found: FieldValue) -> bool:
    return wanted is None or (type(wanted) is type(found) and wanted == found)


Wanted: TypeAlias = "tuple[str, object, object]"
"""A header's name, the type of the value that it is to have, and that as `_hashable`; None: any will do."""

FEW = 32
"""So many things that bindings want are looked at one by one, which is faster."""


class HeaderRules:
    """Bindings of a headers exchange by what they want: all of it where one thing is enough, else the rarest of it."""

    __slots__ = ("_count", "_first", "_more", "_places", "_rules")

    def __init__(self) -> None:
        self._rules: list[HeaderRule | None] = []  # None: it is gone
        self._places: dict[Binding, int] = {}  # of those that are there
        self._count = 0  # things that they want
        self._first: dict[Wanted, int] = {}  # places of rules; mostly one alone wants a thing
        self._more: dict[Wanted, list[int]] = {}

    def add(self, rule: HeaderRule) -> None:
        wanted = [_wanted(name, value) for name, value in rule.wanted.items()]
        if not rule.any:
            wanted = [min(wanted, key=self._want)] if wanted else [_NOTHING]
        for one in wanted:
            if self._first.setdefault(one, len(self._rules)) != len(self._rules):
                self._more.setdefault(one, []).append(len(self._rules))
        self._places[rule.binding] = len(self._rules)
        self._rules.append(rule)
        self._count += len(rule.wanted)

    def remove(self, binding: Binding) -> None:
        """The inverse of `add`."""
        at = self._places.pop(binding)
        rule, self._rules[at] = self._rules[at], None
        assert rule is not None
        self._count -= len(rule.wanted)
        for one in [_NOTHING, *(_wanted(name, value) for name, value in rule.wanted.items())]:
            self._forget(one, at)
        if len(self._rules) > 2 * len(self._places) + FEW:
            self._number_anew()

    def _number_anew(self) -> None:
        left = [rule for rule in self._rules if rule is not None]
        self._rules, self._places, self._first, self._more, self._count = [], {}, {}, {}, 0
        for rule in left:
            self.add(rule)

    def _forget(self, one: Wanted, at: int) -> None:
        more = self._more.get(one, [])
        if self._first.get(one) == at:
            if more:
                self._first[one] = more.pop(0)
            else:
                del self._first[one]
        elif (place := bisect_left(more, at)) < len(more) and more[place] == at:
            del more[place]
        if not more:
            self._more.pop(one, None)

    def _want(self, one: Wanted) -> int:
        """How many look for this."""
        return (one in self._first) + len(self._more.get(one, ()))

    def find(self, headers: Headers) -> Iterator[End]:
        """Where those lead that match, in the order in which they came."""
        if self._count <= FEW:
            return (rule.end for rule in self._rules if rule is not None and rule.matches(headers))
        some = set(self._at(_NOTHING))
        for name, value in headers.items():
            some.update(self._at((name, None, None)), self._at(_wanted(name, value)))
        rules = (self._rules[at] for at in sorted(some))
        return (rule.end for rule in rules if rule is not None and (rule.any or rule.matches(headers)))

    def _at(self, one: Wanted) -> Iterable[int]:
        return (self._first[one], *self._more.get(one, ())) if one in self._first else ()


_NOTHING: Wanted = "", None, ()
"""What a rule wants that wants nothing; no header is this."""


def _wanted(name: str, value: object) -> Wanted:
    return name, None if value is None else type(value), _hashable(value)


def _hashable(value: object) -> object:
    """What is equal where values are, and may be a key."""
    if isinstance(value, list):
        return list, *map(_hashable, cast("list[object]", value))
    if isinstance(value, dict):
        return dict, frozenset((name, _hashable(one)) for name, one in cast("dict[str, object]", value).items())
    return value
