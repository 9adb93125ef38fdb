"""Which address settings are for an address, and which of them is the closest: Artemis's rules.

Words between dots; `*` is exactly one word, `#` none or more and stands last.  `a.#` matches `a`.  A `#` that ends a
word stands for whatever comes after it.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.records.addresses import is_prefix
from penstock.records.policies import AddressSetting


def matches(setting: AddressSetting, address: str) -> bool:
    """Whether a setting is for an address."""
    if setting.literal or setting.pattern == address:
        return setting.pattern == address
    if is_prefix(setting.pattern):
        return address.startswith(setting.pattern[:-1])
    pattern, words = setting.pattern.split("."), address.split(".")
    if pattern[-1] == "#":
        pattern.pop()
        words = words[: len(pattern)]
    return len(pattern) == len(words) and all(one in ("*", word) for one, word in zip(pattern, words, strict=True))


def closest_first(settings: Iterable[AddressSetting], address: str) -> list[AddressSetting]:
    """Those that are for an address, the closest first.

    Its very name; then a literal; then one without `#` before one with; of those with `#` the longer text; of the
    others word by word a word before a `*`, then the shorter.  Where that leaves two alike, by their texts.
    """
    found = [setting for setting in settings if matches(setting, address)]
    found.sort(key=lambda setting: _rank(setting, address))
    return found


def _rank(setting: AddressSetting, address: str) -> tuple[int, int, tuple[int, ...], int, str]:
    pattern = setting.pattern
    if setting.literal:
        return 1, 0, (), 0, pattern
    if pattern == address and not has_wildcard(pattern):
        return 0, 0, (), 0, pattern
    if pattern.endswith("#"):
        return 3, -len(pattern), (), 0, pattern
    return 2, 0, tuple([int(word == "*") for word in pattern.split(".")]), len(pattern), pattern


def has_wildcard(pattern: str) -> bool:
    """Whether it may be for more than one address."""
    return pattern.endswith("#") or "*" in pattern.split(".")
